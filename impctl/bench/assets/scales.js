// Numbers on axes: how they are written, and the scales that the charts are given. Nothing here
// touches the page.
const Scales = (function () {
  "use strict";

  // ---- numbers on axes ---------------------------------------------------------------------
  function short(value) { return String(Number(value.toPrecision(3))); }

  function scaled(value, steps) {
    for (const [size, unit] of steps) {
      if (Math.abs(value) >= size) return short(value / size) + unit;
    }
    return short(value) + (steps.length && value ? steps[steps.length - 1][1] : "");
  }

  const STEPS = {
    ms: [[3600000, " h"], [60000, " min"], [1000, " s"], [1, " ms"]],
    bytes: [[1e12, " TB"], [1e9, " GB"], [1e6, " MB"], [1e3, " kB"], [1, " B"]],
    count: [[1e9, "G"], [1e6, "M"]],
  };

  function tick(value, unit) {
    if (unit === "share") return short(value * 100) + " %";
    if (unit === "ratio") return short(value) + "×";
    if (unit === "ms" || unit === "bytes") return value === 0 ? "0" : scaled(value, STEPS[unit]);
    const step = STEPS.count.find((one) => Math.abs(value) >= one[0]);
    if (step) return short(value / step[0]) + step[1];
    return Math.abs(value) >= 1000 ? value.toLocaleString("en") : short(value);
  }

  function decades(low, high) {
    const wide = Math.log10(high / low);
    const steps = wide >= 3 ? [1] : wide >= 1.8 ? [1, 3] : [1, 2, 5];
    const found = [];
    for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++) {
      for (const step of steps) {
        const value = step * Math.pow(10, power);
        if (value >= low * 0.999 && value <= high * 1.001) found.push(value);
      }
    }
    return found;
  }

  /** Down or up to 1, 2 or 5 of a power of ten: the ends of a logarithmic axis. */
  function rounded(value, up) {
    const power = Math.pow(10, Math.floor(Math.log10(value)));
    const steps = [1, 2, 5, 10].map((step) => step * power);
    if (up) return steps.find((step) => step >= value * 0.999);
    return steps.reverse().find((step) => step <= value * 1.001);
  }

  // ---- scales ------------------------------------------------------------------------------
  function valueScale(axis, values) {
    const scale = {
      type: axis.log ? "logarithmic" : "linear",
      title: { display: true, text: axis.title + (axis.log ? " (log scale)" : "") },
      border: { display: false },
      ticks: { callback: (value) => tick(value, axis.unit), maxRotation: 0, maxTicksLimit: 7 },
      grid: {},
    };
    if (axis.log) {
      scale.min = rounded(axis.low, false);
      scale.max = rounded(axis.high, true);
      if (scale.min === scale.max) { scale.min /= 2; scale.max *= 2; }
      scale.afterBuildTicks = (built) => {
        built.ticks = ticksOf(values, scale).map((value) => ({ value }));
      };
    } else {
      scale.suggestedMax = axis.high;
      scale.beginAtZero = true;
      const step = STEPS[axis.unit] && STEPS[axis.unit].find((one) => axis.high >= one[0]);
      // 1, 2, 5 of the unit that is shown: 200,000 ms steps would read 3.33 min.
      if (step) scale.ticks.stepSize = rounded(axis.high / step[0] / 4, false) * step[0];
    }
    return scale;
  }

  /** Where few values were measured, these are the ticks: no line suggests a point in between. */
  function ticksOf(values, scale) {
    const apart = values && values.every((v, at) => at === 0 || v / values[at - 1] >= 1.45);
    return values && values.length <= 8 && apart ? values : decades(scale.min, scale.max);
  }

  function placeScale(drawing) {
    const values = [...new Set(drawing.panels.flatMap((panel) =>
      panel.lines.flatMap((line) => line.points.map((point) => point.x))))].sort((a, b) => a - b);
    const scale = valueScale(drawing.x, values);
    scale.grid = { display: false };
    scale.border = { display: true };
    if (drawing.x.log) {
      // Room beside the outermost points, or their marks are cut in half.
      scale.min = drawing.x.low / 1.15;
      scale.max = drawing.x.high * 1.15;
    } else {
      const span = drawing.x.high - drawing.x.low;
      const zero = drawing.x.low >= 0 && drawing.x.low <= 0.4 * drawing.x.high;
      scale.min = zero ? 0 : drawing.x.low - 0.04 * span;
      scale.max = drawing.x.high + 0.02 * span;
      scale.ticks.includeBounds = false;
    }
    return scale;
  }

  function categoryScale(drawing) {
    return {
      type: "category", labels: drawing.categories, offset: true,
      title: { display: true, text: drawing.x.title }, grid: { display: false },
      border: { display: false },
      ticks: { autoSkip: false, callback: (at) => shortened(drawing.categories[at]) },
    };
  }

  function shortened(text) { return text.length > 26 ? text.slice(0, 25) + "…" : text; }

  return { tick, valueScale, placeScale, categoryScale };
})();
