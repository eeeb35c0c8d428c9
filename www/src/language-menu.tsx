/** The menu of languages in the header. */

import { chooseLanguage, LANGUAGES, type Language, language } from "./language";
import { UI } from "./strings";

export function LanguageMenu() {
  return (
    <select class="language" aria-label={UI.language} title={UI.language} value={language.value} onChange={(e) => void chooseLanguage(e.currentTarget.value as Language)}>
      {Object.entries(LANGUAGES).map(([code, name]) => (
        <option key={code} value={code} lang={code}>
          {name}
        </option>
      ))}
    </select>
  );
}
