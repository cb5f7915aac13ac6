"""Import the package `tokenizers`, or raise an error that says which release to install. Others import it from here.

Fingerprints do not cover its release. Therefore, releases whose tables of Unicode give some texts other tokens are
refused: one index would hold vectors of both. `tests/unit/runtime/test_tokenizers_package.py` compares all characters.
"""

from __future__ import annotations

from importlib.metadata import version

from es_sbert.errors import UsageError, error_summary
from es_sbert.installation import install_command

__all__ = ["Tokenizer", "normalizers"]


def _refusal(cause: str) -> UsageError:
    return UsageError(
        f"tokenizers {version('tokenizers')} {cause}", f"Install another: {install_command('tokenizers>=0.22,<1')}"
    )


try:
    from tokenizers import Tokenizer, normalizers, pre_tokenizers
except ImportError as error:
    raise _refusal(f"lacks what es-sbert uses: {error_summary(error)}") from error

# Punctuation and a letter that are newer than the tables of Unicode in releases before 1.0.
_words = pre_tokenizers.BertPreTokenizer().pre_tokenize_str("a\u09fd\u061d\u1b4eb")
if len(_words) > 1 or normalizers.NFKC().normalize_str("\ua7f2") != "\ua7f2":
    raise _refusal("splits some texts into other tokens than those before 1.0: vectors of one index would be mixed")
