"""The loop: which dataset is looked at when, and what a look does: observe, plan, act."""
