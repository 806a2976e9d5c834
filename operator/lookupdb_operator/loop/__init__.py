"""The loop: when a dataset is reconciled, and what a reconcile pass does: observe, plan, act."""
