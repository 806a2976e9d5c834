"""What is decided about generations: which one is asked for, whether its data may take effect, when the source is
looked at again, how old what serves is, and how the last builds ended."""
