// Keeps the regions of a page up to date by server-sent events. Without it the pages work as plain HTML.
"use strict";
(() => {
  const body = document.body;
  const url = body.dataset.liveUrl;
  if (!url) return;
  const connection = document.getElementById("connection");
  const blind = document.getElementById("blind");
  const channel = document.querySelector('[data-stream="channel"]');
  let source = null;
  let retry = 0;
  // A list that is empty may have been made before its first entry came.
  let since = channel
    ? (channel.dataset.since ?? channel.querySelector("[data-entry]")?.dataset.entry ?? "0-0")
    : "";
  let lostAt = null;

  // On a narrow screen the navigation is a row that scrolls. Not by scrollIntoView, from where Tab would go on.
  const current = document.querySelector("nav [aria-current]");
  if (current) {
    const row = current.closest("nav");
    row.scrollLeft = current.offsetLeft - (row.clientWidth - current.offsetWidth) / 2;
  }

  // -- regions: children are replaced one by one, by id where they have one --

  function same(old, next) {
    return old.nodeType === next.nodeType && old.nodeName === next.nodeName && (old.id ?? "") === (next.id ?? "");
  }

  function attributes(old, next) {
    for (const { name } of [...old.attributes]) {
      // What is open stays open.
      if (!next.hasAttribute(name) && !(name === "open" && old.nodeName === "DETAILS")) old.removeAttribute(name);
    }
    for (const { name, value } of [...next.attributes]) {
      if (old.getAttribute(name) !== value) old.setAttribute(name, value);
    }
  }

  function patch(old, next) {
    if (old.nodeType === Node.TEXT_NODE || old.nodeType === Node.COMMENT_NODE) {
      if (old.data !== next.data) old.data = next.data;
      return;
    }
    if (old.nodeType !== Node.ELEMENT_NODE) return;
    // What somebody is typing into is theirs.
    if (old === document.activeElement && /^(INPUT|TEXTAREA|SELECT)$/.test(old.nodeName)) return;
    attributes(old, next);
    children(old, next);
  }

  function children(old, next) {
    const byId = new Map();
    for (const child of old.children) if (child.id) byId.set(child.id, child);
    let at = old.firstChild;
    for (const wanted of [...next.childNodes]) {
      const known = wanted.id ? byId.get(wanted.id) : undefined;
      if (known && known !== at) {
        if (at) old.insertBefore(known, at);
        else old.append(known);
        at = known;
      }
      if (at && same(at, wanted)) {
        patch(at, wanted);
        at = at.nextSibling;
      } else {
        // A row that is still needed further down is moved when its turn comes.
        old.insertBefore(document.importNode(wanted, true), at);
        if (at && !(at.id && next.querySelector?.(`#${CSS.escape(at.id)}`))) {
          const gone = at;
          at = at.nextSibling;
          gone.remove();
        }
      }
    }
    while (at) {
      const gone = at;
      at = at.nextSibling;
      gone.remove();
    }
  }

  function parsed(html) {
    const template = document.createElement("template");
    template.innerHTML = html;
    return template.content;
  }

  function regions(changed) {
    for (const [id, html] of Object.entries(changed)) {
      const region = document.getElementById(id);
      if (region?.hasAttribute("data-live")) children(region, parsed(html));
    }
  }

  // -- entries of the channel, newest first --

  function entries({ channel: found, left }) {
    if (!channel) return;
    const most = Number(channel.dataset.most || 200);
    if (left) {
      const said = document.createElement("li");
      said.className = "event";
      said.textContent = `… ${left} more messages came, and are left out`;
      channel.prepend(said);
    }
    const height = channel.scrollHeight;
    for (const [id, html] of found) if (!document.getElementById(id)) channel.prepend(parsed(html));
    while (channel.children.length > most) channel.lastElementChild.remove();
    // Who reads further down keeps their place.
    if (channel.scrollTop > 0) channel.scrollTop += channel.scrollHeight - height;
  }

  // -- the connection --

  function say(state, text) {
    connection.dataset.state = state;
    if (connection.textContent !== text) connection.textContent = text;
  }

  function announce(text) {
    blind.hidden = !text;
    if (blind.textContent !== text) blind.textContent = text;
  }

  function lost() {
    lostAt ??= new Date();
    say("lost", `not connected since ${lostAt.toTimeString().slice(0, 8)}`);
  }

  function away() {
    // It may be there again by now.
    if (lostAt) announce(`No connection to the dashboard since ${lostAt.toTimeString().slice(0, 8)}. The page goes on by itself.`);
  }

  // A stream that is refused does not say why; a page does.
  async function refused() {
    try {
      const { status } = await fetch(location.href, { method: "HEAD", cache: "no-store" });
      if (status === 401) announce("This session has ended. Reload the page to enter the token again.");
      else if (status === 403) announce("This session has ended. Open the address that agentbus web prints when it is started.");
      else away();
    } catch {
      away();
    }
  }

  function open() {
    if (source || document.hidden) return;
    clearTimeout(retry);
    const query = new URLSearchParams({ page: body.dataset.page });
    if (since) query.set("since", since);
    source = new EventSource(`${url}?${query}`);
    source.onopen = () => {
      lostAt = null;
      say("live", "live");
      announce("");
    };
    source.onerror = () => {
      lost();
      if (source?.readyState !== EventSource.CLOSED) {
        away();
        return;
      }
      // Refused: a browser does not try that again by itself.
      close();
      refused();
      retry = setTimeout(open, 3000);
    };
    source.addEventListener("regions", (event) => regions(JSON.parse(event.data)));
    source.addEventListener("entry", (event) => {
      since = event.lastEventId || since;
      entries(JSON.parse(event.data));
    });
    source.addEventListener("blind", (event) => {
      const { since: from, why } = JSON.parse(event.data);
      announce(`No data since ${from.slice(11, 19)} UTC: ${why}`);
    });
    source.addEventListener("sighted", () => announce(""));
    source.addEventListener("renew", () => fetch(location.href, { method: "HEAD", cache: "no-store" }).catch(() => {}));
  }

  function close() {
    source?.close();
    source = null;
  }

  document.addEventListener("visibilitychange", () => {
    if (document.hidden) {
      close();
      clearTimeout(retry);
      say("still", "paused");
    } else {
      open();
    }
  });
  window.addEventListener("pagehide", close);
  window.addEventListener("pageshow", open);
  open();
})();
