/** The documentation's look: VitePress's own in the demo page's colours and the system's type. */

import Theme from "vitepress/theme-without-fonts";
import "./style.css";

export default Theme;
