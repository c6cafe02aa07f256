"""Batches that C gathers from columns in memory."""
