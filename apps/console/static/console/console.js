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
        setInterval(renewHome, 5000);
    } else if (document.querySelector("[data-renews]")) {
        renewing = setInterval(renew, 5000);
    }
    document.getElementById("changelist-form")?.removeAttribute("novalidate"); // a run without its reason is not sent
    if (/\/task\/$/.test(location.pathname)) {
        markView(document.getElementById("tabs-items"));
    }
});

// The theme takes every query that it does not know for the first tab.
function markView(tabs) {
    tabs.querySelectorAll("a").forEach((one) => one.classList.toggle("active", new URL(one.href).search === location.search));
}

// The text of the JSON that a button stands above.
document.addEventListener("click", async ({target}) => {
    if (target.matches?.("button[data-copy]")) {
        await navigator.clipboard.writeText(target.closest("details").querySelector("pre").textContent);
        target.textContent = "Copied";
    }
});

// Django's script counts the ticks of the rows that the page came with; these are of those that are there.
document.addEventListener("DOMContentLoaded", () => {
    const count = window.Actions;
    const boxes = Object.assign(document.getElementsByClassName("action-select"), {forEach: Array.prototype.forEach});
    window.Actions = (_, options) => count(boxes, options);
});
const recount = () => window.dispatchEvent(new Event("pageshow"));
document.addEventListener("change", ({target}) => target.matches(".action-select") && recount());

document.addEventListener("htmx:afterSettle", ({target}) => {
    if (target.id === "modal-content") {
        target.querySelector("input:not([type=hidden]), select, textarea")?.focus();
    }
});

// What is renewed of an open page: the counts and buttons of its head and foot, its rows, its fields.
const PARTS = "#header-inner, #changelist-actions, #result_list, fieldset.module, .inline-group table, #main > :last-child";
// What somebody has typed, ticked or unfolded stays, and so does what Alpine has set.
const MORPHED = {
    beforeNodeMorphed: (node) => !node.matches?.("input:not([type=hidden]), select, textarea"),
    beforeAttributeUpdated: (name, node) =>
        !/^(x-|open$)/.test(name) &&
        !(/^(class|style)$/.test(name) && [...node.attributes].some((one) => one.name.startsWith("x-"))),
};
let renewing;

function partsOf(page) {
    // A row is known again by its link, wherever it stands now.
    page.querySelectorAll("#result_list > tbody").forEach((row) => {
        row.id = row.querySelector("th a")?.getAttribute("href") ?? "";
    });
    return [...page.querySelectorAll(`${PARTS}, span.question`)];
}

// Renews an open page while somebody looks at it, until the server says that nothing more becomes of it.
async function renew() {
    // Who has selected all has selected those that were counted.
    if (document.hidden || document.querySelector("input.select-across")?.value === "1") {
        return;
    }
    const answer = await ask(location.href);
    if (!answer) {
        return;
    }
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const [shown, fresh] = [partsOf(document), partsOf(page)];
    if (fresh.length === shown.length) {
        shown.forEach((part, number) => Idiomorph.morph(part, fresh[number], {callbacks: MORPHED}));
        htmx.process(document.getElementById("header-inner"));
        recount();
    } else if (!document.querySelector(".action-select:checked, input:focus")) {
        location.reload();
    }
    if (!page.querySelector("[data-renews]")) {
        clearInterval(renewing);
    }
}

let rounds = 0;

// Renews the figures of Home while somebody looks at them; the charts once a minute.
async function renewHome() {
    const figures = document.hidden ? undefined : await ask("live/figures");
    if (!figures) {
        return;
    }
    Idiomorph.morph(document.getElementById("live"), await figures.text(), {morphStyle: "innerHTML"});
    rounds += 1;
    const drawn = rounds % 12 === 0 ? await ask("live/charts") : undefined;
    (await drawn?.json())?.forEach((data, number) => {
        const chart = Chart.getChart(document.querySelectorAll("canvas.chart")[number]);
        chart.data = JSON.parse(data);
        chart.update();
    });
}

// What the server answers. While that is nothing, because it is away or the session over, the page is pale.
async function ask(address) {
    const main = document.getElementById("main");
    try {
        const answer = await fetch(address, {headers: {Accept: "text/html", "X-Renewal": "1"}, redirect: "error"});
        main.style.opacity = answer.ok ? "" : "0.5";
        return answer.ok ? answer : undefined;
    } catch {
        main.style.opacity = "0.5";
        return undefined;
    }
}
