/** Resizes a page over the widths of phones, tablets and windows. */

/** Each CSS width from 320 to 1440 in steps, at which something sticks out of the page or of its header, and what. */
export async function overflows(page, step = 20) {
  const found = [];
  const { height } = page.viewportSize();
  for (let width = 320; width <= 1440; width += step) {
    await page.setViewportSize({ width, height });
    const outside = await page.evaluate(() => {
      const { scrollWidth } = document.documentElement;
      const parts = [...document.querySelectorAll(".top :is(a, select, button)")].filter((part) => part.offsetParent !== null);
      const names = parts.filter((part) => part.getBoundingClientRect().left < 0 || part.getBoundingClientRect().right > innerWidth).map((part) => part.getAttribute("aria-label") ?? part.textContent);
      // The tabs are in one row.
      if (new Set([...document.querySelectorAll(".top nav a")].map((tab) => tab.getBoundingClientRect().top)).size > 1) names.push("wrapped tabs");
      return scrollWidth > innerWidth ? [`${scrollWidth - innerWidth} pixels`, ...names] : names;
    });
    if (outside.length) found.push(`${width}: ${outside.join(", ")}`);
  }
  return found;
}
