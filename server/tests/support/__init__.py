"""Code that several test modules share: real files, real processes."""
