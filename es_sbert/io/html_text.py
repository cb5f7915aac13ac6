"""Extract the text of HTML: paragraphs and lines as in a browser, without tags, scripts and comments."""

from __future__ import annotations

import re

# Elements that a browser shows as paragraphs, and as lines; cells of a row are separated by a space.
_PARAGRAPHS = (
    "address,article,aside,blockquote,body,center,details,dialog,div,dl,fieldset,figure,footer,form,h1,h2,h3,h4,h5,h6,"
    "header,hr,main,menu,nav,ol,p,pre,search,section,table,ul"
)
_LINES = "br,caption,dd,dt,figcaption,legend,li,optgroup,option,select,summary,textarea,tr"
_CELLS = "td,th"
_NOT_SHOWN = "script,style,template,noscript,iframe,object,svg,math"
# Tags of these elements separate words; other tags may be inside a word.
SEPARATING = frozenset(f"{_PARAGRAPHS},{_LINES},{_CELLS}".split(","))
# Elements whose text is not text of the page.
HIDDEN = frozenset(f"{_NOT_SHOWN},title".split(","))
# Inserted around these elements. Python treats them as white space, so a text that contains them loses nothing.
_PARAGRAPH, _LINE = "\x1d", "\x1e"
_GAP = re.compile(r"\s+")

# HTML parsers search for an open paragraph at each of these, so a million nested ones take an hour.
MAX_HTML_DEPTH = 2000
_NESTED = re.compile(rf"<(/?)(?:{_PARAGRAPHS.replace(',', '|')}|button)(?=[\s/>])", re.IGNORECASE)


class HtmlTooDeep(Exception):
    """The elements of an HTML text are nested too deeply."""


def strip_html(text: str) -> str:
    """Extract the text of an HTML page or fragment. A text without tags does not change, except for entities.

    White space follows HTML: one space between words, one line feed between lines, two between paragraphs.

    Args:
        text: The HTML, without lone surrogates.

    Raises:
        HtmlTooDeep: the elements are nested more than `MAX_HTML_DEPTH` levels deep.
    """
    if "<" not in text and "&" not in text:
        return text
    if text.count("<") > MAX_HTML_DEPTH:
        _check_depth(text)
    from selectolax.lexbor import LexborHTMLParser

    body = LexborHTMLParser(text).body
    if body is None:
        return ""  # a page with frames
    if body.css_first("body *") is None:
        return body.text()
    for node in body.css(_NOT_SHOWN):
        node.decompose()
    for node in body.css("pre,textarea"):
        for inner in list(node.traverse(include_text=True)):
            if inner.tag == "-text" and "\n" in (kept := inner.text()):
                inner.replace_with(kept.replace("\n", _LINE))
    for names, mark in ((_PARAGRAPHS, _PARAGRAPH), (_LINES, _LINE), (_CELLS, " ")):
        for node in body.css(names):
            node.insert_before(mark)
            node.insert_after(mark)
    return _GAP.sub(_white_space, body.text()).strip()


def _white_space(gap: re.Match[str]) -> str:
    return "\n\n" if _PARAGRAPH in gap[0] else "\n" if _LINE in gap[0] else " "


def _check_depth(text: str) -> None:
    """Estimate the depth from the tags, before parsing.

    Raises:
        HtmlTooDeep: too many elements are open at once.
    """
    depth = 0
    for tag in _NESTED.finditer(text):
        depth = max(0, depth - 1) if tag[1] else depth + (tag[0].lower() not in ("<p", "<hr"))
        if depth > MAX_HTML_DEPTH:
            raise HtmlTooDeep(f"HTML that is nested more than {MAX_HTML_DEPTH:,} levels deep")
