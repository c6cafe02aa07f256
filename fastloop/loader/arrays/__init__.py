"""Batches that fastloop gathers from columns in memory."""
