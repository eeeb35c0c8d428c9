/** VitePress's theme in the colors and fonts of the demo page. */

import Theme from "vitepress/theme-without-fonts";
import "./style.css";

export default Theme;
