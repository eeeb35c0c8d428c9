// Before the first paint, so that a chosen theme does not flash. A file of its own: strict policies allow no script in the page.
try {
  const root = document.documentElement;
  const theme = JSON.parse(localStorage.getItem("jerboa.theme"));
  if (theme === "light" || theme === "dark") root.dataset.theme = theme;
  // Another tab, or a conversation that goes on, is no first screen.
  if (!/^(#chat)?$/.test(location.hash) || JSON.parse(localStorage.getItem("jerboa.conversation"))) root.dataset.begun = "";
} catch {}
