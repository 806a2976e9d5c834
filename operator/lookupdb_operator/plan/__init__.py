"""What should be done about one dataset: ``plan(observed, config, now)``, a pure function. Begin with ``plan.py``."""
