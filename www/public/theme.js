// Runs before the first paint, so that the chosen theme does not flash. A separate file, since strict policies forbid
// inline scripts.
try {
  const root = document.documentElement;
  // As in src/theme.ts; shared with the documentation.
  const theme = localStorage.getItem("vitepress-theme-appearance");
  if (theme === "light" || theme === "dark") root.dataset.theme = theme;
  // Another tab, or a conversation in progress, does not start with the first screen.
  if (!/^(#chat)?$/.test(location.hash) || JSON.parse(localStorage.getItem("jerboa.conversation"))) root.dataset.begun = "";
  // The shell is in English; languages as in src/language.ts.
  const known = ["en", "de", "es", "fr", "pt", "ja", "zh", "ar"];
  const language = JSON.parse(localStorage.getItem("jerboa.language")) || navigator.languages.map((tag) => tag.slice(0, 2).toLowerCase()).find((tag) => known.includes(tag)) || "en";
  if (language !== "en") root.dataset.begun = "";
} catch {}
