// Runs before the first paint, so that the chosen theme does not flash. A separate file, since strict policies forbid
// inline scripts.
try {
  const root = document.documentElement;
  const theme = JSON.parse(localStorage.getItem("jerboa.theme"));
  if (theme === "light" || theme === "dark") root.dataset.theme = theme;
  // Another tab, or a conversation in progress, does not start with the first screen.
  if (!/^(#chat)?$/.test(location.hash) || JSON.parse(localStorage.getItem("jerboa.conversation"))) root.dataset.begun = "";
} catch {}
