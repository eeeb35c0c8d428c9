/** The page's language: the one that the user chose, else the browser's. Languages other than English load on demand. */

import { signal } from "@preact/signals";
import { stored } from "./prefs";
import { ENGLISH, PICKER, type Strings, translate } from "./strings";

/** The languages of the page by their own names. */
export const LANGUAGES = { en: "English", de: "Deutsch", es: "Español", fr: "Français", pt: "Português", ja: "日本語", zh: "中文", ar: "العربية" } as const;

export type Language = keyof typeof LANGUAGES;

const LOADERS: Record<Exclude<Language, "en">, () => Promise<{ default: Strings }>> = {
  de: () => import("./languages/de"),
  es: () => import("./languages/es"),
  fr: () => import("./languages/fr"),
  pt: () => import("./languages/pt"),
  ja: () => import("./languages/ja"),
  zh: () => import("./languages/zh"),
  ar: () => import("./languages/ar"),
};

const isLanguage = (value: unknown): value is Language => typeof value === "string" && Object.hasOwn(LANGUAGES, value);

/** The user's choice; empty for the browser's language. theme.js reads it, too. */
const chosen = stored<Language | "">("language", "", (value): value is Language | "" => value === "" || isLanguage(value));

/** The language that is shown. */
export const language = signal<Language>("en");

/** The language that could not be loaded. */
export const failedLanguage = signal<Language | undefined>(undefined);

/** The language of numbers and dates. */
export const locale = (): string => (typeof document === "undefined" ? "en" : document.documentElement.lang || "en");

/** Shows the page in the user's language; at once if it is English. */
export function startLanguage(): Promise<void> | undefined {
  const wanted = chosen.peek() || (navigator.languages.map((tag) => tag.slice(0, 2).toLowerCase()).find(isLanguage) ?? "en");
  return wanted === "en" ? undefined : show(wanted);
}

/** Changes the language, and remembers it. */
export async function chooseLanguage(next: Language): Promise<void> {
  await show(next);
  if (language.peek() === next) chosen.value = next;
}

/** If it cannot be loaded, such as without a connection, the language stays as it is, and the page says so. */
async function show(next: Language): Promise<void> {
  failedLanguage.value = undefined;
  try {
    translate(next === "en" ? ENGLISH : (await LOADERS[next]()).default);
  } catch {
    failedLanguage.value = next;
    return;
  }
  document.documentElement.style.setProperty("--in-use", JSON.stringify(PICKER.inUse));
  document.documentElement.lang = next;
  document.documentElement.dir = next === "ar" ? "rtl" : "ltr";
  language.value = next;
}
