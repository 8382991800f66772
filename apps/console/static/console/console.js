// Landmarks for screen readers, which the theme's templates lack.
window.addEventListener("load", () => {
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
});

let rounds = 0;

async function ask(what) {
    const answer = await fetch(`?live=${what}`, {headers: {Accept: "text/html"}, redirect: "error"});
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
