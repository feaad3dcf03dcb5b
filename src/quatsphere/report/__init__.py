"""Pictures and pages from plain arrays and files; nothing here computes a model."""
