from apps.digests import selectors, services
from apps.principals.tenancy import Caller
from tests.digests.makers import ack_through, pass_time, post, post_grouped, read


def test_smoke(as_kee: Caller) -> None:
    a = post(as_kee)
    page = read(as_kee)
    assert [e.receipt_ids for e in page.entries] == [[a.receipt_id]]
    for _ in range(3):
        post_grouped(as_kee)
    assert read(as_kee).pending == 3
    pass_time(31)
    assert services.flush_due() == 1
    page = read(as_kee)
    assert page.visible == 4 and page.pending == 0 and page.as_of == 2
    assert selectors.self_check().is_sound
    assert ack_through(as_kee, page.entries[-1].token).acked_receipts == 4
    assert selectors.self_check().is_sound
    assert read(as_kee).unread == 0
    post_grouped(as_kee, flush_class="immediate")
    assert read(as_kee).visible == 1
