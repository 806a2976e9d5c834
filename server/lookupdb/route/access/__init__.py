"""Who may look up: ``spec.router.auth``.

``gatekeeper`` judges the header field of a request. ``authorization`` reads the field, ``token_hashes`` the files of a
Secret, ``accounts`` the tokens of service accounts. ``watch`` hands what files hold to the gatekeeper, in each worker.
"""
