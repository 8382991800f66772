// Renews the figures of Home while somebody looks at them; the charts once a minute.
const live = document.getElementById("live");
const seconds = Number(live.dataset.seconds);
let rounds = 0;

async function ask(what) {
    const answer = await fetch(`?live=${what}`, {headers: {Accept: "text/html"}, redirect: "error"});
    if (!answer.ok) {
        throw new Error(answer.status);
    }
    return answer;
}

async function renew() {
    if (document.hidden) {
        return;
    }
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

setInterval(renew, seconds * 1000);
