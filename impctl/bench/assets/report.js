// Draws the figures. Everything shown comes from the JSON beside this script, as numbers and as
// text for a canvas or a text node: nothing is ever read as HTML.
(function () {
  "use strict";
  const { tick, valueScale, placeScale, categoryScale } = Scales;
  const drawings = JSON.parse(document.getElementById("drawings").textContent);
  const root = document.documentElement;
  const system = window.matchMedia("(prefers-color-scheme: dark)");
  const charts = [];
  const legends = [];
  let printing = false;

  // Each at least 3:1 on the page behind it. Words get distinct hues, amounts a ramp.
  const THEMES = {
    light: {
      words: ["#0072b2", "#c8500a", "#00805f", "#9b3f97", "#7a6a00", "#78828d", "#b3365f"],
      amounts: ["#d2700c", "#c9415c", "#973486", "#5d3698", "#2a2b73"],
      text: "#1c2128", muted: "#59616b", grid: "#e3e6ea", line: "#9aa2ab", page: "#ffffff",
    },
    dark: {
      words: ["#5ab6ec", "#f5a04a", "#36c79e", "#e08fcb", "#ddd05a", "#98a2ae", "#f58aa5"],
      amounts: ["#8d7bea", "#ba72dd", "#e474b3", "#f69080", "#fcc663"],
      text: "#e8ebef", muted: "#a5aeb9", grid: "#2b323b", line: "#6d7783", page: "#14181d",
    },
  };
  const SHAPES = ["circle", "rect", "triangle", "rectRot", "crossRot", "star", "cross"];
  // The same thing has the same colour in every figure: ours blue, recapture orange, none grey.
  const KNOWN = {
    maintain: 0, incremental: 0, "with sketch": 0, recapture: 1, none: 5, "without sketch": 5,
  };
  const DASHES = [[], [7, 4], [2, 3], [10, 3, 2, 3]];

  function themeName() {
    if (printing) return "light";
    return root.dataset.theme || (system.matches ? "dark" : "light");
  }

  function colours() { return THEMES[themeName()]; }

  // ---- what a line or bar looks like -------------------------------------------------------
  function colourAt(names, place, ordered) {
    const palette = ordered ? colours().amounts : colours().words;
    if (ordered && names.length > 1 && names.length <= palette.length) {
      return palette[Math.round((place * (palette.length - 1)) / (names.length - 1))];
    }
    if (ordered || !names.some((name) => name in KNOWN)) return palette[place % palette.length];
    if (names[place] in KNOWN) return palette[KNOWN[names[place]]];
    const free = [2, 3, 4, 6];
    return palette[free[names.filter((name) => !(name in KNOWN)).indexOf(names[place]) % 4]];
  }

  /** Does any chart of the figure hold more than one metric, so that these must be told apart? */
  function several(drawing) {
    return drawing.panels.some((panel) =>
      new Set(panel.lines.map((line) => line.metric)).size > 1);
  }

  function look(drawing, group, metric) {
    const many = drawing.groups.length > 1;
    const place = many ? group : metric;
    const told = several(drawing);
    return {
      colour: colourAt(many ? drawing.groups : drawing.metrics, place, many && drawing.ordered),
      shape: SHAPES[place % SHAPES.length],
      dash: told ? DASHES[metric % DASHES.length] : [],
      // The second metric of a group is an outline, the third half filled.
      fill: many && told ? ["ff", "00", "66", "33"][metric % 4] : "ff",
    };
  }

  function nameOf(drawing, line) {
    const group = drawing.groups[line.group];
    const metric = drawing.metrics[line.metric];
    if (!group) return metric;
    return several(drawing) ? metric + ", " + group : group;
  }

  // ---- least to greatest, and values beside bars --------------------------------------------
  const whiskers = {
    id: "whiskers",
    afterDatasetsDraw(chart) {
      const across = chart.options.indexAxis === "y";
      const scale = chart.scales[across ? "x" : "y"];
      const area = chart.chartArea;
      const pen = chart.ctx;
      chart.data.datasets.forEach((dataset, at) => {
        if (!chart.isDatasetVisible(at)) return;
        chart.getDatasetMeta(at).data.forEach((mark, index) => {
          const point = dataset.data[index];
          const ends = [point.low, point.high].map((value) => scale.getPixelForValue(value));
          if (Math.abs(ends[0] - ends[1]) > 3) {
            stroke(pen, across, ends, across ? mark.y : mark.x, dataset.whisker);
          }
          if (chart.options.valued) {
            pen.fillStyle = colours().text;
            pen.font = "12px " + Chart.defaults.font.family;
            pen.textBaseline = "middle";
            pen.fillText(point.value, Math.min(Math.max(...ends), area.right) + 6, mark.y);
          }
        });
      });
    },
  };

  function stroke(pen, across, ends, middle, colour) {
    pen.save();
    pen.strokeStyle = colour;
    pen.lineWidth = 1.25;
    // Below its line in weight: the median is what is compared.
    pen.globalAlpha = 0.6;
    pen.beginPath();
    const line = (a, b, c, d) => { pen.moveTo(a, b); pen.lineTo(c, d); };
    if (across) {
      line(ends[0], middle, ends[1], middle);
      ends.forEach((end) => line(end, middle - 3, end, middle + 3));
    } else {
      line(middle, ends[0], middle, ends[1]);
      ends.forEach((end) => line(middle - 3, end, middle + 3, end));
    }
    pen.stroke();
    pen.restore();
  }

  // ---- one chart ---------------------------------------------------------------------------
  function datasetsOf(drawing, panel, across, bars) {
    const dots = across && !bars;
    return panel.lines.map((line) => {
      const style = look(drawing, line.group, line.metric);
      return {
        label: nameOf(drawing, line), group: line.group, metric: line.metric,
        data: line.points.map((point) => ({
          ...point, x: across ? point.y : point.x, y: across ? point.x : point.y, place: point.x,
        })),
        borderColor: style.colour, whisker: bars ? colours().text : style.colour,
        backgroundColor: bars ? style.colour + style.fill : style.colour,
        borderDash: style.dash, borderWidth: bars ? 1.5 : 2,
        pointStyle: style.shape, pointRadius: across ? 6 : 4, pointHoverRadius: 7,
        pointBackgroundColor: style.colour + (dots ? style.fill : ""),
        pointBorderColor: style.colour,
        pointBorderWidth: dots || SHAPES.indexOf(style.shape) > 3 ? 2 : 1,
        showLine: !across, minBarLength: 2, maxBarThickness: 22,
        categoryPercentage: 0.78, barPercentage: 0.9,
      };
    });
  }

  function build(canvas, drawing, panel) {
    const across = drawing.categories.length > 0;
    const bars = across && !panel.y.log;
    const datasets = datasetsOf(drawing, panel, across, bars);
    const valued = bars && datasets.length * drawing.categories.length <= 24;
    if (across) {
      const thick = bars ? datasets.length * 24 + 16 : 36;
      canvas.parentElement.style.height = 76 + drawing.categories.length * thick + "px";
    }
    const value = valueScale(panel.y, null);
    const scales = across
      ? { x: value, y: categoryScale(drawing) } : { x: placeScale(drawing), y: value };
    return new Chart(canvas, {
      type: bars ? "bar" : "line",
      data: { datasets },
      plugins: [whiskers],
      options: {
        animation: false, responsive: true, maintainAspectRatio: false, parsing: false,
        indexAxis: across ? "y" : "x", valued, scales,
        layout: { padding: { right: valued ? 64 : 12, top: 8 } },
        interaction: { mode: "nearest", axis: across ? "y" : "x", intersect: false },
        plugins: { legend: { display: false }, tooltip: tooltip(drawing) },
      },
    });
  }

  function tooltip(drawing) {
    const where = (point) => drawing.categories.length
      ? drawing.categories[point.place]
      : drawing.x.unit ? tick(point.place, drawing.x.unit) : point.place.toLocaleString("en");
    return {
      usePointStyle: true, padding: 10, caretPadding: 8, boxPadding: 4,
      itemSort: (a, b) => drawing.categories.length ? 0 : b.raw.y - a.raw.y,
      callbacks: {
        title: (items) => items.length ? drawing.x.title + " " + where(items[0].raw) : "",
        label: (item) => item.dataset.label + ": " + item.raw.text,
      },
    };
  }

  function paint(chart, drawing, panel) {
    const theme = colours();
    const bars = chart.config.type === "bar";
    datasetsOf(drawing, panel, drawing.categories.length > 0, bars).forEach((fresh, at) => {
      const { borderColor, backgroundColor, whisker } = fresh;
      Object.assign(chart.data.datasets[at], {
        borderColor, backgroundColor, whisker,
        pointBackgroundColor: borderColor, pointBorderColor: borderColor,
      });
    });
    for (const scale of Object.values(chart.options.scales)) {
      scale.ticks.color = theme.muted;
      scale.title.color = theme.text;
      scale.grid.color = theme.grid;
      scale.border.color = theme.line;
    }
    Object.assign(chart.options.plugins.tooltip, {
      backgroundColor: theme.page, titleColor: theme.text, bodyColor: theme.text,
      borderColor: theme.line, borderWidth: 1,
    });
    chart.update("none");
  }

  // ---- legends: one for all panels of a figure, of buttons that hide and show ---------------
  function legendOf(box, drawing) {
    const parts = [];
    const many = drawing.groups.length > 1;
    if (many) parts.push(part(box, drawing.group_title, drawing.groups, "group", drawing));
    if (several(drawing)) {
      parts.push(part(box, "", drawing.metrics, "metric", drawing));
    }
    return parts.flat();
  }

  function part(box, title, names, kind, drawing) {
    const list = document.createElement("div");
    list.className = "keys";
    list.setAttribute("role", "group");
    list.setAttribute("aria-label", title || "What is drawn");
    if (title) list.append(Object.assign(document.createElement("span"), { textContent: title }));
    const keys = names.map((name, at) => {
      const button = document.createElement("button");
      button.type = "button";
      button.setAttribute("aria-pressed", "true");
      const swatch = document.createElement("canvas");
      swatch.setAttribute("aria-hidden", "true");
      button.append(swatch, document.createTextNode(name));
      button.addEventListener("click", () => {
        button.setAttribute("aria-pressed", String(button.getAttribute("aria-pressed") !== "true"));
        show(drawing);
      });
      list.append(button);
      return { button, swatch, kind, at, drawing };
    });
    box.append(list);
    return keys;
  }

  function show(drawing) {
    const hidden = new Set(legends
      .filter((key) => key.drawing === drawing && key.button.getAttribute("aria-pressed") !== "true")
      .map((key) => key.kind + key.at));
    for (const entry of charts.filter((one) => one.drawing === drawing)) {
      entry.chart.data.datasets.forEach((dataset, at) => entry.chart.setDatasetVisibility(
        at, !hidden.has("group" + dataset.group) && !hidden.has("metric" + dataset.metric)));
      entry.chart.update("none");
    }
  }

  function paintKey({ swatch, kind, at, drawing }) {
    const many = drawing.groups.length > 1;
    const neutral = many && kind === "metric";
    const style = kind === "group" ? look(drawing, at, 0) : look(drawing, 0, at);
    const ratio = window.devicePixelRatio || 1;
    const bars = drawing.categories.length > 0;
    swatch.width = 30 * ratio;
    swatch.height = 14 * ratio;
    const pen = swatch.getContext("2d");
    pen.scale(ratio, ratio);
    pen.strokeStyle = pen.fillStyle = neutral ? colours().muted : style.colour;
    pen.lineWidth = 2;
    if (bars && !drawing.panels[0].y.log) {
      pen.fillStyle += style.fill;
      pen.fillRect(3, 2, 24, 10);
      pen.lineWidth = 1.5;
      pen.strokeRect(3, 2, 24, 10);
      return;
    }
    if (!bars) {
      pen.setLineDash(kind === "group" ? [] : style.dash);
      pen.beginPath();
      pen.moveTo(0, 7);
      pen.lineTo(30, 7);
      pen.stroke();
      pen.setLineDash([]);
    }
    if (!neutral || bars) {
      // Of dots a metric is told by how they are filled, as it is of bars.
      if (bars && kind === "metric") pen.fillStyle += style.fill;
      const pointStyle = neutral ? "circle" : style.shape;
      Chart.helpers.drawPoint(pen, { pointStyle, radius: 4.5, borderWidth: 2 }, 15, 7);
    }
  }

  // ---- keys move along a chart and say what is there -----------------------------------------
  function walk(chart, event) {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (!step && event.key !== "Escape") return;
    const visible = chart.data.datasets.flatMap((dataset, datasetIndex) =>
      chart.isDatasetVisible(datasetIndex)
        ? dataset.data.map((point, index) => ({ datasetIndex, index, point })) : []);
    const places = [...new Set(visible.map((one) => one.point.place))].sort((a, b) => a - b);
    const held = places.indexOf(chart.place);
    const at = step ? Math.min(Math.max(held + step, 0), places.length - 1) : -1;
    chart.place = places[at];
    const active = visible.filter((one) => one.point.place === chart.place);
    chart.setActiveElements(active);
    const mark = active.length && chart.getDatasetMeta(active[0].datasetIndex).data[active[0].index];
    chart.tooltip.setActiveElements(active, mark ? { x: mark.x, y: mark.y } : { x: 0, y: 0 });
    chart.update("none");
    const said = active.map((one) =>
      chart.data.datasets[one.datasetIndex].label + " " + one.point.text);
    document.getElementById("said").textContent =
      active.length ? [...chart.tooltip.title, ...said].join("; ") : "";
    event.preventDefault();
  }

  // ---- the page ------------------------------------------------------------------------------
  function repaint() {
    charts.forEach((entry) => paint(entry.chart, entry.drawing, entry.panel));
    legends.forEach(paintKey);
    const other = themeName() === "dark" ? "light" : "dark";
    button.textContent = other === "dark" ? "Dark theme" : "Light theme";
  }

  const button = document.getElementById("theme");
  button.hidden = false;
  button.addEventListener("click", () => {
    root.dataset.theme = themeName() === "dark" ? "light" : "dark";
    try {
      localStorage.setItem("impctl-theme", root.dataset.theme);
    } catch (error) { /* not kept, and no harm done */ }
    repaint();
  });

  Chart.defaults.font.family = getComputedStyle(document.body).fontFamily;
  Chart.defaults.font.size = 12;
  const said = document.createElement("p");
  said.id = "said";
  said.className = "unseen";
  said.setAttribute("aria-live", "polite");
  document.body.append(said);

  document.querySelectorAll("[data-legend]").forEach((box) => {
    const drawing = drawings[Number(box.dataset.legend)];
    legends.push(...legendOf(box, drawing));
  });
  document.querySelectorAll("canvas[data-figure]").forEach((canvas) => {
    const drawing = drawings[Number(canvas.dataset.figure)];
    const panel = drawing.panels[Number(canvas.dataset.panel)];
    const chart = build(canvas, drawing, panel);
    canvas.addEventListener("keydown", (event) => walk(chart, event));
    charts.push({ chart, drawing, panel });
  });
  // Long tables wait to be asked for; without this script every one is open.
  const tables = [...document.querySelectorAll("details.cells")];
  tables.forEach((one) => { if (one.querySelectorAll("tbody tr").length > 8) one.open = false; });
  let closed = [];
  window.addEventListener("beforeprint", () => {
    printing = true;
    closed = tables.filter((one) => !one.open);
    tables.forEach((one) => { one.open = true; });
    repaint();
  });
  window.addEventListener("afterprint", () => {
    printing = false;
    closed.forEach((one) => { one.open = false; });
    repaint();
  });
  system.addEventListener("change", repaint);
  repaint();
})();
