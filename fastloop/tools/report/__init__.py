"""report(): shows what a loop waits for, as a table, a page and a trace."""
