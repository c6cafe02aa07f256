"""Datasets of image files in folders of classes."""
