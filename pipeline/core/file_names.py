"""Names of files from names of models and runs, whatever these are."""

import hashlib
import re
import unicodedata

LONGEST_NAME = 80
"""Characters of a text that its file name keeps."""


def safe_name(text: str) -> str:
    """A file name from any text: what is not a letter, digit, dot, dash or underscore becomes `_`.

    A name that had to change gets some of its digest, so that two texts never share a name.
    """
    cleaned = re.sub(r"[^A-Za-z0-9._-]", "_", text)[:LONGEST_NAME].lstrip(".-") or "_"
    if cleaned == text:
        return text
    digest = hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()
    return f"{cleaned}-{digest[:8]}"


def readable_name(text: str) -> str:
    """A file name that reads like the text: letters lose their accents, runs of other characters become one `_`.

    Texts may share one. A text with letters that have no such form, and a long one, is named as by `safe_name`.
    """
    plain = "".join(c for c in unicodedata.normalize("NFKD", text) if not unicodedata.combining(c))
    cleaned = re.sub(r"[^A-Za-z0-9._-]+", "_", plain).lstrip(".-")
    lost = any(c.isalnum() and not c.isascii() for c in plain)
    return safe_name(plain) if lost or not cleaned or len(cleaned) > LONGEST_NAME else cleaned
