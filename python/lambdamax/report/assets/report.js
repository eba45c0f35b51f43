// What the page says of a selection: as lambdamax/report/views.py does, from the same numbers, then drawn by Vega.
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const charts = JSON.parse(document.getElementById("charts").textContent);
  const words = data.words;
  const HOUR_S = 3600;
  const at = [...data.start];
  const map = { across: 0, down: 0, of: null };
  [map.across, map.down] = data.map_axes || [0, 0];

  // Numbers as people read them: significant digits, thousands separated, no trailing zeros.
  function number(value, digits = 4) {
    if (value === 0) return "0";
    const places = digits - 1 - Math.floor(Math.log10(Math.abs(value)));
    const rounded = places < 0 ? Math.round(value / 10 ** -places) * 10 ** -places : value;
    return rounded.toLocaleString("en-US", { maximumFractionDigits: Math.min(Math.max(places, 0), 20) });
  }

  function group(place, without = "") {
    return data.axes.reduce(
      (found, axis, i) => (axis.name === without ? found : found * axis.values.length + place[i]), 0);
  }

  function valueOf(place, name) {
    const axis = data.axes.findIndex((each) => each.name === name);
    return axis < 0 ? data.fixed[name] ?? null : data.axes[axis].values[place[axis]];
  }

  const limitName = (code) => (code === null ? "–" : data.limits[code]);

  function option(place, ofGroup, which) {
    const cell = ofGroup * data.options.length + which;
    const row = { option: data.options[which], share: null, with: "", rate_rps: null, usd_per_mtok: null };
    for (const name of Object.keys(data.cells)) row[name] = data.cells[name][cell];
    if (row.rpu === null) return Object.assign(row, { refused: data.refused.reasons[data.refused.cells[cell]] });
    const made = data.configs[row.config];
    Object.assign(row, { with: made.text, gpus: made.gpus, usd: made.usd, factor: made.factor });
    row.rate_rps = (row.rpu * made.gpus * made.usd) / HOUR_S;
    const osl = valueOf(place, "osl_tokens");
    row.usd_per_mtok = osl === null ? null : 1e6 / (row.rpu * osl);
    row.limit = limitName(row.limit);
    row.next = limitName(row.next);
    row.statistic = statistic(place, "ttft");
    return row;
  }

  function options(place) {
    const ofGroup = group(place);
    const rows = data.options.map((_, which) => option(place, ofGroup, which));
    const ranked = rows.filter((row) => row.rpu !== null).sort((a, b) => a.rank - b.rank);
    for (const row of ranked) row.share = row.rpu / ranked[0].rpu;
    return [...ranked, ...rows.filter((row) => row.rpu === null)];
  }

  // The answer

  function lead(best, second) {
    if (!second) return "and nothing else can serve this";
    const ratio = best.rpu / second.rpu;
    const more = ratio < 2 ? `${number(100 * (ratio - 1), 2)} % more than` : `${number(ratio, 3)} times as many as`;
    return `${more} ${second.option}${second.with === best.with ? "" : ` with ${second.with}`}`;
  }

  function howKnown(best) {
    if (best.low != null && best.origin != null) {
      const [kind, ...rest] = data.origins[best.origin].split(":");
      const rows = rest.map((each) => (/^\d+$/.test(each) ? `${each} rows` : each));
      const origin = [`constants ${kind}`, ...rows].join(", ");
      return `Its rate is known to within a factor of ${number(1 / best.low)} in 80 % of cases (${origin}).`;
    }
    const made = data.configs[best.config];
    return made.factor === null ? "" :
      `Its rate is known to within a factor of ${number(made.factor)} (profile ${made.profile}, ${made.status}).`;
  }

  function sure(best, ranked) {
    const known = howKnown(best);
    const share = best.cheapest_percent;
    if (share === null) return known;
    const word = share >= words.sure ? "sure" : share >= words.likely ? "likely" : "open";
    const rival = ranked.reduce((a, b) => (b.cheapest_percent > a.cheapest_percent ? b : a));
    const other = rival.cheapest_percent > share ?
      ` ${rival.option} is the cheapest more often, in ${rival.cheapest_percent} %.` : "";
    return (`How sure: ${word}. With errors of rates and the spread of prices drawn ${number(data.draws)} times, it is ` +
      `the cheapest in ${share} % and costs ${number(best.regret_percent)} % more than the cheapest on average.${other} ` +
      known).trimEnd();
  }

  function percentile(place) {
    const percent = valueOf(place, "slo_percentile");
    return percent ? ` Its SLOs on TTFT and end-to-end latency hold for ${number(percent)} % of requests.` : "";
  }

  const percentOf = (place) => valueOf(place, "slo_percentile") || 0;
  const statistic = (place, name) => data.statistics[name][String(percentOf(place))] || "mean";

  function latencyTitle(place, name) {
    const percent = percentOf(place), told = statistic(place, name);
    return `${told} ${words.latencies[name]}, ms${percent && told !== `p${percent}` ? `, for an SLO on p${percent}` : ""}`;
  }

  function answer(place) {
    const rows = options(place);
    const ranked = rows.filter((row) => row.rpu !== null);
    if (!ranked.length) {
      const reasons = rows.map((row) => `${row.option}: ${row.refused}`).join("; ");
      return ["No option can serve this.", `What was tried, and why it fails: ${reasons}.`, ""];
    }
    const best = ranked[0];
    const gpus = best.gpus === 1 ? "1 accelerator" : `${best.gpus} accelerators`;
    return [
      `${best.option} with ${best.with} serves the most requests per dollar: ${number(best.rpu)}, ` +
        `${lead(best, ranked[1])}.`,
      `What binds: ${best.limit}, then ${best.next}. One replica (${gpus}, ${number(best.gpus * best.usd)} USD an ` +
        `hour) serves ${number(best.rate_rps)} requests/s at a mean TPOT of ${number(best.tpot_ms)} ms and a ` +
        `${statistic(place, "ttft")} TTFT of ${number(best.ttft_ms)} ms.${percentile(place)}`,
      sure(best, ranked),
    ];
  }

  const selection = (place) =>
    data.axes.map((axis, i) => axis.labels[place[i]]).join(", ") || "the one case of this sweep";

  // Rows of charts

  function paretoRows(place) {
    const sets = data.pareto, of = group(place, "slo_tpot_s"), osl = valueOf(place, "osl_tokens");
    const slo = valueOf(place, "slo_tpot_s"), rows = [];
    for (let i = sets.start[of]; i < sets.start[of + 1]; i++) {
      const made = data.configs[sets.config[i]], rpu = sets.rpu[i], tpot = sets.tpot_ms[i];
      rows.push({
        kind: "point", option: data.options[made.option], with: made.text, tpot_ms: tpot, rpu,
        user_tok_s: 1000 / tpot, gpu_tok_s: (rpu * made.usd * osl) / HOUR_S,
        meets: slo === null || tpot <= slo * 1000 * words.on_the_slo,
      });
    }
    if (slo !== null) rows.push({ kind: "slo", tpot_ms: slo * 1000, user_tok_s: 1 / slo });
    return rows;
  }

  function mapRows(place, across, down, of) {
    const wide = data.axes[across].values.length, high = across === down ? 1 : data.axes[down].values.length;
    const few = wide * high <= words.labelled, rows = [];
    for (let y = high - 1; y >= 0; y--) {
      for (let x = 0; x < wide; x++) {
        const there = [...place];
        there[across] = x;
        if (high > 1) there[down] = y;
        const row = mapRow(there, of);
        Object.assign(row, { x: data.axes[across].ticks[x], y: high > 1 ? data.axes[down].ticks[y] : "" });
        Object.assign(row, { ix: x, iy: high > 1 ? y : x, where: selection(there) });
        row.selected = there.every((value, i) => value === place[i]);
        Object.assign(row, { label: few ? row.lead_text : "", limit_label: few ? row.limit : "" });
        rows.push(row);
      }
    }
    return rows;
  }

  function mapRow(place, of) {
    const cells = data.cells, first = group(place) * data.options.length;
    const order = data.options.map((_, i) => i).filter((i) => cells.rpu[first + i] !== null)
      .sort((a, b) => cells.rank[first + a] - cells.rank[first + b]);
    const limited = of !== null ? of : order.length ? order[0] : null;
    const limit = limited === null ? null : cells.limit[first + limited];
    const row = { limit: limit === null ? words.nothing : data.limits[limit], winner: words.nothing };
    row.lead = words.leads[words.leads.length - 1];
    if (!order.length) return Object.assign(row, { lead_text: "", with: "", rpu: null, cheapest: null });
    const best = first + order[0];
    const ratio = order.length > 1 ? cells.rpu[best] / cells.rpu[first + order[1]] : null;
    if (ratio !== null) row.lead = words.leads[words.steps.filter((step) => ratio >= step).length];
    return Object.assign(row, {
      winner: data.options[order[0]], with: data.configs[cells.config[best]].text, rpu: cells.rpu[best],
      lead_text: ratio === null ? "alone" : `${number(ratio, 3)}×`, cheapest: cells.cheapest_percent[best],
    });
  }

  function curveRows(place, name) {
    const best = options(place)[0], curve = data.groups.curve[group(place)];
    if (curve === null) return [];
    const limit = data.curves.limit_rps[curve], slo = valueOf(place, `slo_${name}_s`);
    const told = data.curves[`${name}_ms`];
    const values = (name in data.statistics ? told[statistic(place, name)] : told)[curve];
    const top = 2 * Math.max(slo === null ? 0 : slo * 1000, best[`${name}_ms`] ?? values[0]);
    const rows = values
      .map((value, i) => ({ kind: "curve", rate: limit * data.shares[i], value }))
      .filter((row) => row.value !== null && row.value <= top);
    rows.push({ kind: "limit", rate: limit }, { kind: "max", rate: best.rate_rps });
    const [low, high] = band(best);
    if (low !== null) rows.push({ kind: "band", rate: low, rate2: Math.min(high, 1.2 * limit) });
    if (slo !== null) rows.push({ kind: "slo", value: slo * 1000 });
    return rows;
  }

  function band(best) {
    if (best.low !== undefined && best.low !== null) return [best.rate_rps * best.low, best.rate_rps * best.high];
    return best.factor === null ? [null, null] : [best.rate_rps / best.factor, best.rate_rps * best.factor];
  }

  function sensitivityRows(place) {
    const of = group(place), bits = data.groups.switches[of] || 0;
    return data.facts.map((fact, i) => {
      const value = data.groups.elasticity[i][of];
      const mark = (bits >> i) & 1 ? "*" : "";
      return { fact: words.facts[fact], value, label: value === null ? "" : `${value.toFixed(2)}${mark}` };
    }).filter((row) => row.value !== null);
  }

  const robustnessRows = (place) => options(place).filter((row) => row.cheapest_percent !== null).map((row) => ({
    option: row.option, with: row.with, share: row.cheapest_percent,
    label: `${row.cheapest_percent} % (regret ${number(row.regret_percent)} %)`,
  }));

  function wins(place, across, down) {
    const rows = mapRows(place, across, down, null), counts = new Map();
    for (const name of [...data.options, words.nothing]) counts.set(name, 0);
    for (const row of rows) counts.set(row.winner, counts.get(row.winner) + 1);
    const told = [...counts].filter(([, count]) => count).sort((a, b) => b[1] - a[1]);
    const listed = told.map(([name, count]) => `${name} (${number(count)})`).join(", ");
    const over = [...new Set([down, across].map((axis) => data.axes[axis].heading))].join(" and ");
    return `Winners over ${number(rows.length)} values of ${over}: ${listed}.`;
  }

  function rowsOf(id, place) {
    const cells = (of) => (data.axes.length ? mapRows(place, map.across, map.down, of) : []);
    return {
      "pareto-cost": () => paretoRows(place), "pareto-tokens": () => paretoRows(place),
      winners: () => cells(null), limits: () => cells(map.of),
      "curve-ttft": () => curveRows(place, "ttft"), "curve-tpot": () => curveRows(place, "tpot"),
      "curve-e2e": () => curveRows(place, "e2e"),
      sensitivity: () => sensitivityRows(place), robustness: () => robustnessRows(place),
    }[id]();
  }

  // Tables

  const told = (value) => (value === null ? "–" : number(value));

  const percent = (value) => `${number(value, 3)} %`;

  function tableRow(row) {
    if (row.rpu === null) {
      const blank = Array(words.columns - 3).fill("–");
      return [row.option, `no answer: ${row.refused}`, ...blank, told(row.break_even)];
    }
    const share = row.cheapest_percent, regret = row.regret_percent;
    return [
      row.option, row.with, number(row.rpu), percent(100 * row.share),
      share === null ? "–" : percent(share), regret === null ? "–" : `+${percent(regret)}`,
      told(row.usd_per_mtok), number(row.rate_rps), String(row.gpus), number(row.gpus * row.usd),
      number(row.tpot_ms), row.statistic === "mean" ? number(row.ttft_ms) : `${number(row.ttft_ms)} (${row.statistic})`,
      row.limit, row.next, told(row.break_even),
    ];
  }

  function fillTable(body, rows) {
    body.replaceChildren(...rows.map((cells) => {
      const line = document.createElement("tr");
      cells.forEach((text, i) => {
        const cell = document.createElement(i ? "td" : "th");
        if (!i) cell.scope = "row";
        cell.textContent = text;
        line.append(cell);
      });
      return line;
    }));
  }

  // Drawing

  const axisName = (axis) => (axis.unit ? `${axis.heading}, ${axis.unit}` : axis.heading);
  const drawn = new Map();
  let shown = null;
  const tip = document.getElementById("tip");

  function showTip(_, event, __, value) {
    if (value === null || value === undefined || value === "" || typeof value !== "object") {
      tip.hidden = true;
      return;
    }
    tip.replaceChildren(...Object.entries(value).filter(([, text]) => text !== "null").map(([name, text]) => {
      const line = document.createElement("div");
      line.textContent = `${name}: ${text}`;
      return line;
    }));
    tip.hidden = false;
    const left = Math.min(event.clientX + 14, window.innerWidth - tip.offsetWidth - 8);
    const top = Math.min(event.clientY + 14, window.innerHeight - tip.offsetHeight - 8);
    Object.assign(tip.style, { left: `${Math.max(left, 4)}px`, top: `${Math.max(top, 4)}px` });
  }

  function heightOf(id, rows) {
    const h = words.heights;
    if (id === "winners" || id === "limits") {
      const lines = new Set(rows.map((row) => row.y)).size;
      const size = lines * h.cell[0] <= h.map[1] ? h.cell[0] : h.cell[1];
      return Math.min(Math.max(lines * size, h.map[0]), h.map[1]);
    }
    return id === "sensitivity" || id === "robustness" ? rows.length * h.bar : h.chart;
  }

  function draw(id) {
    const box = document.getElementById(`chart-${id}`);
    const rows = rowsOf(id, at);
    if (drawn.has(id)) drawn.get(id).finalize();
    drawn.delete(id);
    box.replaceChildren();
    document.getElementById(`none-${id}`).hidden = rows.length > 0;
    if (!rows.length) return null;
    let text = JSON.stringify(charts[id]);
    for (const name of Object.keys(data.statistics)) {
      text = text.replaceAll(`"@${name}"`, JSON.stringify(latencyTitle(at, name)));
    }
    if (data.axes.length) {
      text = text.replaceAll('"@x"', JSON.stringify(axisName(data.axes[map.across])));
      text = text.replaceAll('"@y"', JSON.stringify(map.across === map.down ? "" : axisName(data.axes[map.down])));
    }
    const spec = JSON.parse(text);
    spec.width = box.clientWidth;
    spec.height = heightOf(id, rows);
    spec.data.find((each) => each.name === "rows").values = rows;
    const how = { mode: "vega", actions: false, renderer: "svg", defaultStyle: false, tooltip: showTip, logLevel: 1 };
    return vegaEmbed(box, spec, how).then((made) => {
      drawn.set(id, made);
      made.view.addEventListener("click", (_, item) => pick(item));
      const svg = box.querySelector("svg");
      svg.setAttribute("aria-label", document.getElementById(`title-${id}`).textContent);
    });
  }

  function pick(item) {
    if (!item || !item.datum || item.datum.ix === undefined) return;
    at[map.across] = item.datum.ix;
    if (map.across !== map.down) at[map.down] = item.datum.iy;
    document.querySelectorAll("select[data-axis]").forEach((each) => { each.value = at[Number(each.dataset.axis)]; });
    shown = show();
  }

  function show() {
    answer(at).forEach((text, i) => { document.getElementById(`answer-${i}`).textContent = text; });
    for (const place of document.querySelectorAll(".selection")) place.textContent = selection(at);
    fillTable(document.getElementById("options"), options(at).map(tableRow));
    if (data.axes.length) document.getElementById("wins").textContent = wins(at, map.across, map.down);
    return Promise.all(Object.keys(charts).map(draw));
  }

  // Selectors

  function onSelect(select, act) {
    select.addEventListener("change", () => { act(select.value); shown = show(); });
  }

  document.querySelectorAll("select[data-axis]").forEach((select) => {
    onSelect(select, (value) => { at[Number(select.dataset.axis)] = Number(value); });
  });
  const limitsOf = document.getElementById("limits-of");
  onSelect(limitsOf, (value) => { map.of = value === "" ? null : Number(value); });
  for (const side of ["across", "down"]) {
    const select = document.getElementById(`map-${side}`);
    if (select) onSelect(select, (value) => { map[side] = Number(value); });
  }

  let resizing = 0;
  let width = document.documentElement.clientWidth;
  window.addEventListener("resize", () => {
    if (document.documentElement.clientWidth === width) return;
    width = document.documentElement.clientWidth;
    clearTimeout(resizing);
    resizing = setTimeout(() => { shown = show(); }, 150);
  });

  window.addEventListener("beforeprint", () => {
    for (const each of document.querySelectorAll("details")) each.open = true;
  });

  // For whoever checks the page: what is selected, how numbers are written, what is drawn, and when all of it stands.
  window.lambdamaxReport = { at, number, rowsOf, ready: () => shown };
  shown = show();
})();
