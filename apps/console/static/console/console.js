// Alpine runs without eval here (unfold/js/alpine/alpine.js), so it reads no global and no function in an attribute.
// What the theme's attributes need of either stands here.
document.addEventListener("alpine:init", () => {
    const {body} = document;
    const tab = body.getAttribute("x-data").match(/activeTab: '([^']*)'/)?.[1] ?? "";
    Alpine.data("theme", theme);
    Alpine.data("searchForm", searchForm);
    Alpine.data("searchCommand", searchCommand);
    Alpine.data("page", () => ({
        activeTab: getCurrentTab() ?? tab,
        sidebarMobileOpen: false,
        sidebarDesktopOpen: localStorage.getItem("sidebarDesktopOpen") !== "0",
        init() {
            this.$watch("sidebarDesktopOpen", (open) => localStorage.setItem("sidebarDesktopOpen", open ? "1" : "0"));
        },
    }));
    body.setAttribute("x-data", "page");
    body.removeAttribute("x-init");
    document.querySelectorAll("form[x-bind\\:action]").forEach((form) => form.removeAttribute("x-bind:action"));
    document.getElementById("search-input-command")?.setAttribute(
        "x-on:keydown.enter.prevent", "!$event.metaKey && !$event.ctrlKey && selectItem(false, false)"
    );
    document.querySelectorAll("[x-bind\\:class*='items !== undefined']").forEach((list) => list.removeAttribute("x-bind:class"));
    document.querySelectorAll("[x-on\\:click*=localStorage]").forEach((button) => {
        button.setAttribute("x-on:click", "sidebarDesktopOpen = !sidebarDesktopOpen");
    });
});
if (window.htmx) {
    htmx.config.allowEval = false;
}

window.addEventListener("load", () => {
    // The theme draws after this: a chart names its lines, and tells their figures wherever the pointer is.
    Object.assign(DEFAULT_CHART_OPTIONS, {interaction: {mode: "index", intersect: false}});
    DEFAULT_CHART_OPTIONS.scales.y.ticks.precision = 0;
    DEFAULT_CHART_OPTIONS.plugins.legend.display = true;
    Object.assign(DEFAULT_CHART_OPTIONS.plugins.legend.labels, {usePointStyle: false, boxWidth: 12});
    // Landmarks for screen readers, which the theme's templates lack.
    const main = document.getElementById("main");
    main?.setAttribute("role", "main");
    main?.previousElementSibling?.setAttribute("role", "navigation");
    main?.previousElementSibling?.setAttribute("aria-label", "Console");
    document.querySelectorAll("nav:not([aria-label])").forEach((nav, number) => {
        nav.setAttribute("aria-label", `navigation ${number + 1}`);
    });
    document.querySelectorAll(".simplebar-content-wrapper").forEach((region, number) => {
        region.setAttribute("aria-label", `scrollable content ${number + 1}`);
    });
    if (document.getElementById("live")) {
        const seconds = Number(document.getElementById("live").dataset.seconds);
        setInterval(() => renew(seconds), seconds * 1000);
    }
    if (/\/(task|execution|worker)\/$/.test(location.pathname) && document.getElementById("result_list")) {
        setInterval(renewList, 5000);
    }
    if (/\/(task|execution|plan|bulkaction)\/\d+\/change\/$/.test(location.pathname)) {
        told(document).forEach((field) => (field.sent = field.innerHTML));
        setInterval(renewThing, 3000);
    }
    if (/\/task\/$/.test(location.pathname)) {
        showViews(document.getElementById("tabs-items"));
    }
});

// The views that this browser keeps, by name, beside those that everybody has; and a button to keep or forget one.
function showViews(tabs) {
    const key = `views:${location.pathname}`;
    const kept = JSON.parse(localStorage.getItem(key) ?? "{}");
    for (const [name, query] of Object.entries(kept)) {
        tabs.append(Object.assign(document.createElement("a"), {href: query, textContent: name}));
    }
    const known = Object.keys(kept).find((name) => kept[name] === location.search);
    const tab = [...tabs.querySelectorAll("a")].find((one) => new URL(one.href).search === location.search);
    // The theme takes every query that it does not know for the first tab.
    tabs.querySelectorAll("a").forEach((one) => one.classList.toggle("active", one === tab));
    if (tab && !known) {
        return;
    }
    const button = Object.assign(document.createElement("button"), {type: "button", className: "cursor-pointer underline"});
    button.textContent = known ? "Forget this view" : "Save this view";
    button.addEventListener("click", () => {
        const name = known ?? prompt("Name of this view, kept in this browser:")?.trim();
        if (known) {
            delete kept[known];
        } else if (name) {
            kept[name] = location.search;
        }
        localStorage.setItem(key, JSON.stringify(kept));
        location.reload();
    });
    tabs.append(button);
}

// The text of the JSON that a button stands above.
document.addEventListener("click", async ({target}) => {
    if (target.matches?.("button[data-copy]")) {
        await navigator.clipboard.writeText(target.closest("details").querySelector("pre").textContent);
        target.textContent = "Copied";
    }
});

let tag = "";

// This page as it is now; undefined if it is as it was, or while nobody looks or somebody types.
async function asOfNow() {
    const dialog = document.getElementById("modal-content")?.offsetParent;
    if (document.hidden || dialog || document.activeElement.matches("input, select, textarea")) {
        return undefined;
    }
    try {
        const answer = await fetch(location.href, {redirect: "error", headers: {"If-None-Match": tag}});
        if (!answer.ok) {
            return undefined; // nothing has changed, or the session is over
        }
        tag = answer.headers.get("ETag") ?? "";
        return new DOMParser().parseFromString(await answer.text(), "text/html");
    } catch {
        return undefined; // the server is away, or this page is left
    }
}

const told = (page) => [...page.querySelectorAll(".readonly, [hx-target='#modal-content']")];

// Renews the fields of a page that the server tells otherwise now; what somebody has unfolded elsewhere stays so.
async function renewThing() {
    const page = await asOfNow();
    const [shown, fresh] = [told(document), page ? told(page) : []];
    if (page && fresh.length !== shown.length) {
        location.reload(); // there is something else to do now
        return;
    }
    fresh.forEach(({innerHTML}, number) => {
        const field = shown[number];
        if (field.sent !== innerHTML) {
            field.innerHTML = field.sent = innerHTML;
        }
    });
}

// Renews the rows of a list while nobody ticks. The boxes stay, because scripts hold them.
async function renewList() {
    const rows = document.querySelectorAll("#result_list .data-row");
    const page = document.querySelector("input.action-select:checked") ? undefined : await asOfNow();
    if (!page) {
        return;
    }
    const fresh = page.querySelectorAll("#result_list .data-row");
    if (fresh.length !== rows.length) {
        location.reload();
        return;
    }
    rows.forEach((row, number) => [...row.children].forEach((cell, place) => {
        const [box, then] = [cell.querySelector("input.action-select"), fresh[number].children[place]];
        if (box) {
            box.value = then.querySelector("input").value;
        } else if (cell.innerHTML !== then.innerHTML) {
            cell.innerHTML = then.innerHTML;
        }
    }));
}

let rounds = 0;

async function ask(what) {
    const answer = await fetch(`live/${what}`, {headers: {Accept: "text/html"}, redirect: "error"});
    if (!answer.ok) {
        throw new Error(answer.status);
    }
    return answer;
}

// Renews the figures of Home while somebody looks at them; the charts once a minute.
async function renew(seconds) {
    if (document.hidden) {
        return;
    }
    const live = document.getElementById("live");
    try {
        live.innerHTML = await (await ask("figures")).text();
        live.style.opacity = "";
        rounds += 1;
        if (rounds % (60 / seconds) === 0) {
            const data = await (await ask("charts")).json();
            document.querySelectorAll("canvas.chart").forEach((canvas, number) => {
                const chart = Chart.getChart(canvas);
                chart.data = JSON.parse(data[number]);
                chart.update();
            });
        }
    } catch {
        live.style.opacity = "0.5"; // the figures are old: the server is away, or the session is over
    }
}
