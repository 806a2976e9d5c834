"""Fuzzes Python code that reads bytes from outside: ``python -m fuzzing SECONDS [TARGET …]``.

A target feeds one input to the real code and checks what must hold for any input: only the intended errors reject it,
and two ways to read it agree. ``targets`` lists them with their samples. atheris, if installed, chooses inputs by
coverage; else they are random. The native kernels have their own fuzzers in ``server/native/fuzz``. ``make fuzz`` runs
both.
"""
