/** The menu of languages in the header, and the notice about a language that could not be loaded. */

import { JerboaError } from "jerboa";
import type { TargetedEvent } from "preact";
import { chooseLanguage, failedLanguage, LANGUAGES, type Language, language } from "./language";
import { LOAD, UI } from "./strings";
import { Notice } from "./ui/notice";

export function LanguageMenu() {
  const change = async (event: TargetedEvent<HTMLSelectElement>): Promise<void> => {
    const menu = event.currentTarget;
    await chooseLanguage(menu.value as Language);
    menu.value = language.peek();
  };
  return (
    <select class="language" aria-label={UI.language} title={UI.language} value={language.value} onChange={(event) => void change(event)}>
      {Object.entries(LANGUAGES).map(([code, name]) => (
        <option key={code} value={code} lang={code}>
          {name}
        </option>
      ))}
    </select>
  );
}

export function LanguageNotice() {
  const failed = failedLanguage.value;
  if (!failed) return null;
  return (
    <div class="floating-notice">
      <Notice
        title={LOAD.failed(LANGUAGES[failed])}
        error={new JerboaError("assets", `languages/${failed}`)}
        actions={
          <button type="button" class="secondary" onClick={() => (failedLanguage.value = undefined)}>
            {LOAD.dismiss}
          </button>
        }
      />
    </div>
  );
}
