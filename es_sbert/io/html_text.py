"""The text of HTML: paragraphs and lines as a browser shows them, entities decoded, no tags, scripts and comments."""

from __future__ import annotations

import re

# What a browser shows as a paragraph, and as a line; cells of a row are separated by a space.
_PARAGRAPHS = (
    "address,article,aside,blockquote,body,center,details,dialog,div,dl,fieldset,figure,footer,form,h1,h2,h3,h4,h5,h6,"
    "header,hr,main,menu,nav,ol,p,pre,search,section,table,ul"
)
_LINES = "br,caption,dd,dt,figcaption,legend,li,optgroup,option,select,summary,textarea,tr"
_CELLS = "td,th"
_NOT_SHOWN = "script,style,template,noscript,iframe,object,svg,math"
# Put around these elements. They are white space to Python, so that a text which has them loses nothing.
_PARAGRAPH, _LINE = "\x1d", "\x1e"
_GAP = re.compile(r"\s+")

# Parsers of HTML look for an open paragraph at each of these: a million that are nested take an hour.
MAX_HTML_DEPTH = 2000
_NESTED = re.compile(rf"<(/?)(?:{_PARAGRAPHS.replace(',', '|')}|button)(?=[\s/>])", re.IGNORECASE)


class HtmlTooDeep(Exception):
    """HTML whose elements are nested too deeply."""


def strip_html(text: str) -> str:
    """The text of an HTML page or fragment. A text without tags stays as it is, except for entities.

    White space is that of HTML: one space between words, a line feed between lines, two between paragraphs.

    Args:
        text: Without lone surrogates.

    Raises:
        HtmlTooDeep: its elements are nested more than `MAX_HTML_DEPTH` levels deep.
    """
    if "<" not in text and "&" not in text:
        return text
    if text.count("<") > MAX_HTML_DEPTH:
        _check_depth(text)
    from selectolax.lexbor import LexborHTMLParser

    body = LexborHTMLParser(text).body
    if body is None:
        return ""  # a page of frames
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
    """Estimate the depth by the tags, before a parser does more.

    Raises:
        HtmlTooDeep: more elements are open at once than may be.
    """
    depth = 0
    for tag in _NESTED.finditer(text):
        depth = max(0, depth - 1) if tag[1] else depth + (tag[0].lower() not in ("<p", "<hr"))
        if depth > MAX_HTML_DEPTH:
            raise HtmlTooDeep(f"HTML that is nested more than {MAX_HTML_DEPTH:,} levels deep")
