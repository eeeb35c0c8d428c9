// Before the first paint, so that a chosen theme does not flash. A file of its own: strict policies allow no script in the page.
try {
  const theme = JSON.parse(localStorage.getItem("jerboa.theme"));
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
} catch {}
