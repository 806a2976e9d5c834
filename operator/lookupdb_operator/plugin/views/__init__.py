"""What verbs print, from what was read: pure."""
