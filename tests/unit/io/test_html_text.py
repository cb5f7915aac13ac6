"""The text of HTML, as a browser shows it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from es_sbert.io.html_text import MAX_HTML_DEPTH, HtmlTooDeep, strip_html
from tests.raised import raises_as_recorded


@pytest.mark.parametrize(
    ("html", "text"),
    [
        (
            "<h1>Title</h1><p>One <b>bo</b>ld.\n<p>Two&nbsp;&amp; three<br>line",
            "Title\n\nOne bold.\n\nTwo & three\nline",
        ),
        ("<ul><li>a</li> <li>b</ul>c", "a\nb\n\nc"),
        ("<table><tr><th>A<td>1<tr><th>B<td>2</table>", "A 1\nB 2"),
        ("<style>p{}</style>Hi<script>alert('<p>')</script> there<!-- <p>no --><template><p>no</template>", "Hi there"),
        ("<pre>if a:\n    b</pre>", "if a:\nb"),
        ("<svg><text>no</text><script>no</script></svg>yes<noscript>no</noscript>", "yes"),
        ("&lt;b&gt; 5 &euro; &#128512; &unknown;", "<b> 5 € 😀 &unknown;"),
        ("<p onclick='alert(1)' title='no'>a<img src=x alt=no>b</p>", "ab"),
        ("<frameset><frame src=a></frameset>", ""),
        # Without tags, white space is the writer's.
        ("if a < b:\n    c & d", "if a < b:\n    c & d"),
    ],
)
def test_text_has_the_lines_and_the_words_that_a_browser_shows(html: str, text: str) -> None:
    assert strip_html(html) == text


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="<&")))
def test_text_without_markup_stays_as_it_is(text: str) -> None:
    assert strip_html(text) == text


def test_elements_that_are_nested_too_deeply_are_refused_at_once() -> None:
    assert strip_html("<div>" * MAX_HTML_DEPTH + "deep") == "deep"
    assert strip_html("<div><p>a<hr></div>" * 3000).count("a") == 3000
    with raises_as_recorded(HtmlTooDeep):
        strip_html("<DIV class=x>" * 1_000_000)
