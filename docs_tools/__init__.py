"""The documentation site of `make docs`.

``product`` names the modules of the product that pages are made from; ``reference`` makes the pages; ``site`` is
MkDocs' hook; ``drawing`` makes pictures from the text files in ``docs/pictures``.
"""
