"""The order of a sample, and how much of an index the engine is asked for."""

from es_sbert.index.document_sample import draw_order


def test_order_depends_on_seed_id_and_routing() -> None:
    keys = [(str(number), routing) for number in range(200) for routing in (None, "a")]
    orders = {seed: sorted(keys, key=lambda key: draw_order(key, seed)) for seed in (0, 1)}
    assert orders[0] != orders[1]
    assert len({draw_order(key, 0) for key in keys}) == len(keys)
    # A fair draw: about half of the first documents come from each half of the ids.
    low = sum(int(identifier) < 100 for identifier, _ in orders[0][:200])
    assert 70 < low < 130


def test_added_documents_leave_the_order_of_the_others() -> None:
    keys: list[tuple[str, str | None]] = [(str(number), None) for number in range(50)]
    before = sorted(keys[:40], key=lambda key: draw_order(key, 3))
    after = sorted(keys, key=lambda key: draw_order(key, 3))
    assert [key for key in after if int(key[0]) < 40] == before
