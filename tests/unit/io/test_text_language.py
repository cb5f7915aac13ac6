"""The language of a text, and texts that must not count as any."""

from __future__ import annotations

import pytest

from es_sbert.io.text_language import LANGUAGE_NAMES, detect_language, stop_words

TEXTS = {
    "en": "The printer on the second floor does not print after the update.",
    "de": "Der Drucker im zweiten Stock druckt seit dem Update nicht mehr.",
    "fr": "L'imprimante du deuxième étage n'imprime plus depuis la mise à jour.",
    "es": "La impresora del segundo piso no imprime desde la actualización.",
    "it": "La stampante del secondo piano non stampa più dopo l'aggiornamento.",
    "pt": "A impressora do segundo andar não imprime mais desde a atualização.",
    "nl": "De printer op de tweede verdieping drukt niet meer af sinds de update.",
    "pl": "Drukarka na drugim piętrze nie drukuje od czasu, gdy była aktualizacja.",
    "cs": "Tiskárna ve druhém patře od aktualizace netiskne, i když je zapnutá.",
    "sv": "Skrivaren på andra våningen skriver inte ut efter uppdateringen.",
    "ru": "Принтер на втором этаже не печатает после обновления системы.",
    "uk": "Принтер на другому поверсі не друкує після оновлення системи.",
    "el": "Ο εκτυπωτής στον δεύτερο όροφο δεν εκτυπώνει μετά την ενημέρωση.",
    "ar": "الطابعة في الطابق الثاني لا تطبع بعد التحديث.",
    "he": "המדפסת בקומה השנייה אינה מדפיסה אחרי העדכון.",
    "hi": "दूसरी मंजिल का प्रिंटर अपडेट के बाद नहीं छापता है।",
    "zh": "二楼的打印机更新后无法打印。",
    "ja": "二階のプリンターは更新後に印刷できません。",
    "ko": "이 층의 프린터가 업데이트 후 인쇄되지 않습니다.",
    "th": "เครื่องพิมพ์ชั้นสองไม่พิมพ์หลังจากอัปเดต",
}


def test_every_language_is_recognized() -> None:
    assert {language: detect_language(text) for language, text in TEXTS.items()} == {name: name for name in TEXTS}
    assert TEXTS.keys() == LANGUAGE_NAMES.keys()
    assert stop_words().keys() < LANGUAGE_NAMES.keys()


@pytest.mark.parametrize("form", ["<p class='der die das'>{}</p>", "> {}", "12:30 #4711 {}", "{} 🙂", "\ufeff{}"])
def test_markup_and_numbers_around_a_text_do_not_matter(form: str) -> None:
    for language, text in TEXTS.items():
        assert detect_language(form.format(text)) == language


@pytest.mark.parametrize(
    "text",
    [
        "", " \n", "4711", "A-4711/DE 0815-LA", "DE, ES, LA, DES", "Order 12 x 40", "🙂🙂🙂", "ERROR 0x80070057",
        # Names, also those with particles.
        "Jürgen von der Heide", "José María de la Cruz, Las Palmas de Gran Canaria", "Ludwig Mies van der Rohe",
        "Leonardo da Vinci; João dos Santos e Silva", "Los Angeles", "Die Hard", "La La Land", "Москва", "東京",
        # Code and identifiers.
        "self.la = de.der(die)", "SELECT a, e FROM des;", "com.example.de.la.OrderService",
        # English with a word or two that are stop words elsewhere, and too little of anything.
        "Man in black", "Plan B and plan C", "I met him and Wim van den Berg", "Drucker kaputt", "hello",
        # As much English as Spanish.
        "la casa es the house is",
    ],
)  # fmt: skip
def test_texts_without_evidence_are_no_other_language(text: str) -> None:
    assert detect_language(text) in (None, "en")
