// Runs before the page is shown, so that a chosen theme does not flash.
(function () {
  "use strict";
  var root = document.documentElement;
  root.classList.add("scripted");
  try {
    var chosen = localStorage.getItem("impctl-theme");
    if (chosen === "light" || chosen === "dark") root.dataset.theme = chosen;
  } catch (error) { /* storage may be off for files: the system's theme holds */ }
})();
