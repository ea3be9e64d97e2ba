"""The pages of `agentbus web` about dead letters: by error, replayed and purged."""

from __future__ import annotations

import pytest

from tests.browsing import Browser
from tests.test_dashboard_letters import DOWN, WRONG, bury, open_letters
from tests.tiers import on_one_store

pytestmark = on_one_store


def link(page, said: str) -> str:
    """Return the first link whose address contains this."""
    return next(a["href"] for a in page.all("a") if said in a.get("href", ""))


async def test_letters_are_shown_by_error_most_letters_first(bus, served):
    bury(bus, "mail", WRONG)
    bury(bus, "mail", f"{DOWN}\nattempt 1", 2)
    bury(bus, "shop", DOWN)

    page = (await Browser(served).get("/letters")).page

    assert page.unbalanced == []
    assert "4 letters, 0 of them replayed, with 2 errors" in page.text
    assert page.text.index(DOWN) < page.text.index(WRONG)


async def test_letters_of_a_queue_are_shown_alone(bus, served):
    bury(bus, "mail", WRONG)
    bury(bus, "shop", DOWN)

    page = (await Browser(served).get("/letters?queue=mail")).page

    assert WRONG in page.text
    assert DOWN not in page.text


async def test_an_error_of_any_text_is_shown_as_text_and_its_letters_are_found(bus, served):
    error = "\"><script>alert(1)</script>&amp; 100% 'é' a+b?#/\\"
    bury(bus, "mail", error)
    browser = Browser(served)
    page = (await browser.get("/letters")).page

    one = (await browser.get(link(page, "/letters-error"))).page
    letter = (await browser.get(link(one, "/letter?"))).page

    for found in (page, one, letter):
        assert found.unbalanced == []
        assert len(found.all("script")) == 1
        assert error in found.text


async def test_letters_without_an_error_are_found(bus, served):
    bury(bus, "mail", "\nsecond line")
    browser = Browser(served)
    page = (await browser.get("/letters")).page

    one = (await browser.get(link(page, "/letters-error"))).page

    assert "second line" in (await browser.get(link(one, "/letter?"))).page.text


async def test_five_hundred_letters_of_one_error_are_replayed_by_one_form(bus, writing):
    bury(bus, "mail", DOWN, 300)
    bury(bus, "shop", DOWN, 200)
    bury(bus, "mail", WRONG, 3)
    browser = Browser(writing)
    page = (await browser.get("/letters")).page
    one = (await browser.get(link(page, "/letters-error"))).page

    answer = await browser.press(one, "/act/letters.replay")

    assert answer.status == 303
    assert open_letters(bus, "mail") == [WRONG] * 3
    assert open_letters(bus, "shop") == []
    said = (await browser.get(answer.header("location"))).page.text
    assert "500 dead letters with the error" in said
    spoken = [one for one in bus.overhear(last=5) if one.agent_id == "human:eve"]
    assert "500 dead letters" in spoken[-1].text


async def test_only_the_letters_of_the_queue_are_replayed_from_its_page(bus, writing):
    bury(bus, "mail", DOWN, 2)
    bury(bus, "shop", DOWN, 2)
    browser = Browser(writing)
    page = (await browser.get("/letters?queue=mail")).page
    one = (await browser.get(link(page, "/letters-error"))).page

    await browser.press(one, "/act/letters.replay")

    assert open_letters(bus, "mail") == []
    assert open_letters(bus, "shop") == [DOWN] * 2


async def test_letters_are_replayed_into_another_queue(bus, writing):
    bury(bus, "mail", DOWN, 3)
    browser = Browser(writing)
    page = (await browser.get("/letters")).page
    one = (await browser.get(link(page, "/letters-error"))).page
    letter = (await browser.get(link(one, "/letter?"))).page

    await browser.press(letter, "/act/letter.replay", to="by-hand")
    again = await browser.press(letter, "/act/letter.replay", to="elsewhere")
    said = (await browser.get(again.header("location"))).page.text
    await browser.press(one, "/act/letters.replay", to="by-hand")

    assert "was replayed before" in said
    assert len(bus.queue("by-hand").peek()) == 3
    assert bus.queues() == ["by-hand", "mail"]


async def test_a_letter_is_replayed_and_shows_the_new_task(bus, writing):
    bury(bus, "mail", DOWN)
    (letter,) = bus.queue("mail").dead_letters()
    browser = Browser(writing)
    page = (await browser.get(f"/letter?queue=mail&group=default&id={letter.id}")).page

    answer = await browser.press(page, "/act/letter.replay")

    (again,) = bus.queue("mail").dead_letters()
    assert again.replayed
    shown = (await browser.get(answer.header("location"))).page
    assert shown.unbalanced == []
    assert again.replayed in shown.text


async def test_letters_are_purged_only_after_their_queue_is_typed(bus, writing):
    bury(bus, "mail", DOWN, 2)
    bury(bus, "mail", WRONG)
    browser = Browser(writing)
    page = (await browser.get("/letters?queue=mail")).page
    one = (await browser.get(link(page, "/letters-error"))).page

    refused = await browser.press(one, "/act/letters.purge", typed="shop")
    said = (await browser.get(refused.header("location"))).page.text
    kept = open_letters(bus, "mail")
    await browser.press(one, "/act/letters.purge", typed="mail")

    assert "nothing was purged: type 'mail'" in said
    assert kept == [DOWN, DOWN, WRONG]
    assert open_letters(bus, "mail") == [WRONG]


async def test_letters_of_all_queues_are_purged_after_the_project_is_typed(bus, writing):
    bury(bus, "mail", DOWN)
    bury(bus, "shop", DOWN)
    browser = Browser(writing)
    page = (await browser.get("/letters")).page
    one = (await browser.get(link(page, "/letters-error"))).page

    await browser.press(one, "/act/letters.purge", typed=bus.project)

    assert open_letters(bus, "mail") + open_letters(bus, "shop") == []


async def test_one_letter_is_purged_after_its_queue_is_typed(bus, writing):
    bury(bus, "mail", DOWN, 2)
    first, _ = bus.queue("mail").dead_letters()
    browser = Browser(writing)
    page = (await browser.get(f"/letter?queue=mail&group=default&id={first.id}")).page

    refused = await browser.press(page, "/act/letter.purge")
    await browser.press(page, "/act/letter.purge", typed="mail")

    assert refused.status == 303
    assert [one.id for one in bus.queue("mail").dead_letters()] != [first.id]
    assert len(bus.queue("mail").dead_letters()) == 1


async def test_a_view_that_only_reads_has_no_forms_that_act(bus, served):
    bury(bus, "mail", DOWN)
    browser = Browser(served)
    page = (await browser.get("/letters")).page
    one = (await browser.get(link(page, "/letters-error"))).page
    letter = (await browser.get(link(one, "/letter?"))).page

    for found in (page, one, letter):
        assert [form for form in found.all("form") if form.get("method") == "post"] == []
    assert (await browser.post("/act/letters.replay", {"error": DOWN})).status == 403
    assert open_letters(bus, "mail") == [DOWN]


@pytest.mark.parametrize(
    "path", ["/letter", "/letter?queue=mail&id=1-1", "/letter?queue=mail&id=x"]
)
async def test_a_letter_that_is_gone_is_a_page_that_says_so(bus, served, path):
    bury(bus, "mail", DOWN)

    answer = await Browser(served).get(path)

    assert answer.status == 404
    assert answer.page.unbalanced == []


async def test_an_empty_list_of_letters_says_what_would_be_there(served):
    page = (await Browser(served).get("/letters")).page

    assert "There are no dead letters." in page.text


# -- several at once --


def _letters(bus, queue, number):
    bus.queue(queue).publish_many(range(number))
    for task in bus.queue(queue).fetch(count=number):
        task.bury("no")
    return [one.id for one in bus.queue(queue).dead_letters()]


def _ticks(page):
    return [one["name"] for one in page.all("input", type="checkbox", form="selected")]


async def test_selected_letters_are_replayed_and_others_are_not(bus, writing):
    _letters(bus, "mail", 3)
    browser = Browser(writing)
    page = (await browser.get("/queue?name=mail&state=dead")).page
    first, _, last = _ticks(page)

    answer = await browser.press(page, "letters.replay_selected", **{first: "1", last: "1"})
    after = (await browser.get(answer.header("location"))).page

    assert "2 selected dead letters replayed" in after.text
    assert len(bus.queue("mail").fetch(count=9)) == 2
    again = await browser.press(page, "letters.replay_selected", **{first: "1"})
    said = (await browser.get(again.header("location"))).page.text
    assert "0 selected dead letters replayed; 1 left alone" in said


async def test_selected_letters_of_an_error_are_purged_once_a_name_is_typed(bus, writing):
    _letters(bus, "mail", 2)
    _letters(bus, "shop", 1)
    browser = Browser(writing)
    page = (await browser.get("/letters-error?error=no")).page
    ticks = {one: "1" for one in _ticks(page) if "shop" not in one}
    (form,) = page.all("form", id="selected")
    assert form["action"] == "/act/letters.replay_selected"
    (csrf,) = {one["value"] for one in page.all("input", name="csrf")}
    base = {"csrf": csrf, "back": "/letters", **ticks}

    await browser.post("/act/letters.purge_selected", {**base, "typed": "wrong"})
    assert len(bus.queue("mail").dead_letters()) == 2
    await browser.post("/act/letters.purge_selected", {**base, "typed": bus.project})

    assert bus.queue("mail").dead_letters() == []
    assert len(bus.queue("shop").dead_letters()) == 1


@pytest.mark.parametrize(
    "pick", [{}, {"pick:": "1"}, {'pick:["mail"]': "1"}, {"pick:[1,2,3]": "1"}]
)
@pytest.mark.parametrize("deed", ["letters.replay_selected", "letters.purge_selected"])
async def test_a_selection_of_nothing_changes_nothing(bus, writing, pick, deed):
    _letters(bus, "mail", 2)
    browser = Browser(writing)
    page = (await browser.get("/queue?name=mail&state=dead")).page
    (csrf,) = {one["value"] for one in page.all("input", name="csrf")}

    form = {"csrf": csrf, "back": "/", "typed": "mail", **pick}
    answer = await browser.post(f"/act/{deed}", form)

    said = (await browser.get(answer.header("location"))).page.text
    assert "selected" in said
    assert len(bus.queue("mail").dead_letters()) == 2


async def test_selected_tasks_are_cancelled(bus, writing):
    tasks = [bus.queue("mail").publish(one, delay=60) for one in range(3)]
    browser = Browser(writing)
    page = (await browser.get("/queue?name=mail&state=delayed")).page
    ticks = _ticks(page)

    await browser.press(page, "tasks.cancel_selected", **dict.fromkeys(ticks[:2], "1"))

    assert len(ticks) == len(tasks) == 3
    assert bus.stats("mail")[0].delayed == 1


async def test_a_queue_whose_tasks_are_all_delayed_has_a_page(bus, served):
    bus.queue("mail").publish(1, delay=60)

    answer = await Browser(served).get("/queue?name=mail")

    assert answer.status == 200
    assert "Delayed 1" in answer.page.text


async def test_without_write_no_row_can_be_selected(bus, served):
    _letters(bus, "mail", 1)

    page = (await Browser(served).get("/queue?name=mail&state=dead")).page

    assert page.all("input", type="checkbox") == []
