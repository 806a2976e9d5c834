"""The documentation site: what `make docs` generates from the product, and how the pages become a site.

``product`` names the modules of the product that pages are made from; ``reference`` makes the pages; ``site`` is
MkDocs' hook; ``drawing`` makes pictures from the text files in ``docs/pictures``.
"""
