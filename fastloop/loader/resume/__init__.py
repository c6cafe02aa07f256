"""Where an epoch stands: state_dict() and load_state_dict()."""
