"""Fuzzes what takes bytes from outside and is written in Python: ``python -m fuzzing SECONDS [TARGET …]``.

A target feeds one input to the real code and checks what must hold of it, whatever the input: that it is refused by
the errors that are meant for it and by no others, and that two ways of reading it agree. ``targets`` has them all, each
with the inputs to begin with. Where atheris is installed, inputs are chosen by what they reach; else they are random.
The native kernels have fuzzers of their own, in ``server/native/fuzz``; ``make fuzz`` runs both.
"""
