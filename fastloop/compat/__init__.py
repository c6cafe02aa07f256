"""Knowledge of other code: private parts of torch, moved memory, late imports, known releases."""
