//! Detects the WebGPU implementation from the user agent. The adapter cannot tell: Dawn on a Mac
//! reports the vendor `apple`, as WebKit does.

/// A WebGPU implementation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WebGpuImplementation {
    /// WebKit on a phone, where a page gets the least memory.
    IPhone,
    /// WebKit on a tablet, including one that requests desktop pages.
    IPad,
    /// WebKit elsewhere: Safari on a Mac, and apps with web views there.
    WebKit,
    /// Dawn, wgpu, or an unknown implementation without known workarounds.
    Other,
}

impl WebGpuImplementation {
    /// Detects the implementation from a user agent and `navigator.maxTouchPoints`, which workers
    /// do not have. An iPad that requests desktop pages reports a Mac, but no Mac has more than one
    /// touch point.
    pub fn from_user_agent(agent: &str, touch_points: u32) -> Self {
        let has = |word: &str| agent.contains(word);
        // Every browser on iOS uses WebKit.
        if has("iPhone") || has("iPod") {
            return if has("Windows Phone") {
                Self::Other
            } else {
                Self::IPhone
            };
        }
        if has("iPad") {
            return Self::IPad;
        }
        // Chromium-based browsers also contain AppleWebKit, as does jsdom in Node (over Dawn).
        if !has("AppleWebKit")
            || ["Chrome/", "Chromium/", "Android", "jsdom/"]
                .into_iter()
                .any(has)
        {
            return Self::Other;
        }
        if has("Macintosh") && touch_points > 1 {
            Self::IPad
        } else {
            Self::WebKit
        }
    }

    /// Whether it is WebKit.
    pub fn is_webkit(self) -> bool {
        self != Self::Other
    }

    /// Whether the system ends a page whose GPU memory does not fit, instead of refusing an
    /// allocation: WebKit's processes have a limit, and Android frees memory by ending processes.
    pub fn ends_pages(self, agent: &str) -> bool {
        self.is_webkit() || agent.contains("Android")
    }

    /// Name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::IPhone => "iphone",
            Self::IPad => "ipad",
            Self::WebKit => "webkit",
            Self::Other => "other",
        }
    }

    /// Bytes of GPU memory that a page can use before the system kills it. Phones have loaded
    /// models of 0.4 GB and been killed at 0.6 GB; tablets allow 1.5 to 2 GB for the whole page.
    pub fn memory_limit(self) -> Option<u64> {
        match self {
            Self::IPhone => Some(640 << 20),
            Self::IPad => Some(1400 << 20),
            Self::WebKit | Self::Other => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::WebGpuImplementation::{self, IPad, IPhone, Other, WebKit};

    const MAC: &str =
        "Mozilla/5.0 (Macintosh; Intel Mac OS X 10_15_7) AppleWebKit/605.1.15 (KHTML, like Gecko)";
    const PHONE: &str = "Mozilla/5.0 (iPhone; CPU iPhone OS 18_7 like Mac OS X) AppleWebKit/605.1.15 (KHTML, like Gecko)";
    const PAD: &str =
        "Mozilla/5.0 (iPad; CPU OS 18_7 like Mac OS X) AppleWebKit/605.1.15 (KHTML, like Gecko)";
    const MAC_CHROME: &str =
        "Mozilla/5.0 (Macintosh; Intel Mac OS X 10_15_7) AppleWebKit/537.36 (KHTML, like Gecko)";
    const WINDOWS: &str =
        "Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 (KHTML, like Gecko)";
    const LINUX: &str = "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko)";
    const ANDROID: &str =
        "Mozilla/5.0 (Linux; Android 10; K) AppleWebKit/537.36 (KHTML, like Gecko)";

    /// Start and end of a user agent, touch points, expected implementation.
    const AGENTS: &[(&str, &str, u32, WebGpuImplementation)] = &[
        // Safari and other WebKit browsers on a Mac.
        (MAC, "Version/26.0 Safari/605.1.15", 0, WebKit),
        (MAC, "Version/18.6 Safari/605.1.15", 0, WebKit),
        (MAC, "Version/26.0 Safari/605.1.15 Ddg/26.0", 0, WebKit),
        (MAC, "", 0, WebKit),
        (
            "Mozilla/5.0 (Macintosh; Intel Mac OS X 14_6) AppleWebKit/618.3.11 (KHTML, like Gecko)",
            "Version/18.0 Safari/618.3.11",
            0,
            WebKit,
        ),
        (
            "Mozilla/5.0 (Macintosh; Intel Mac OS X 10_15_7) AppleWebKit/605.1.15 (KHTML, like Gecko)",
            "Version/17.4 Safari/605.1.15 OrionBrowser/0.99",
            0,
            WebKit,
        ),
        // Playwright's and GNOME's WebKit.
        (
            "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/605.1.15 (KHTML, like Gecko)",
            "Version/18.5 Safari/605.1.15",
            0,
            WebKit,
        ),
        // iPhones: Safari, other browsers, apps.
        (PHONE, "Version/26.0 Mobile/15E148 Safari/604.1", 5, IPhone),
        (
            "Mozilla/5.0 (iPhone; CPU iPhone OS 26_0 like Mac OS X) AppleWebKit/605.1.15 (KHTML, like Gecko)",
            "Version/26.0 Mobile/15E148 Safari/604.1",
            5,
            IPhone,
        ),
        (
            PHONE,
            "CriOS/141.0.7390.41 Mobile/15E148 Safari/604.1",
            5,
            IPhone,
        ),
        (
            PHONE,
            "FxiOS/143.2 Mobile/15E148 Safari/605.1.15",
            5,
            IPhone,
        ),
        (
            PHONE,
            "Version/18.0 EdgiOS/141.0.3537.57 Mobile/15E148 Safari/604.1",
            5,
            IPhone,
        ),
        (
            PHONE,
            "OPiOS/16.0.15.124050 Mobile/15E148 Safari/9537.53",
            5,
            IPhone,
        ),
        (
            PHONE,
            "Version/18.6 Mobile/15E148 DuckDuckGo/7 Safari/605.1.15",
            5,
            IPhone,
        ),
        (
            PHONE,
            "Version/18.6 YaBrowser/25.8.5.486.10 Mobile/15E148 Safari/604.1",
            5,
            IPhone,
        ),
        (PHONE, "GSA/387.0.804 Mobile/15E148 Safari/604.1", 5, IPhone),
        (
            PHONE,
            "Mobile/15E148 [FBAN/FBIOS;FBAV/530.0.0.41.98;FBBV/788;FBDV/iPhone16,1;FBSN/iOS;FBSV/18.7]",
            5,
            IPhone,
        ),
        (
            PHONE,
            "Mobile/15E148 Instagram 398.0.0.28.84 (iPhone16,1; iOS 18_7; en_GB; scale=3.00; 1179x2556)",
            5,
            IPhone,
        ),
        (
            PHONE,
            "Mobile/15E148 MicroMessenger/8.0.61(0x18003d2e) NetType/WIFI Language/zh_CN",
            5,
            IPhone,
        ),
        (
            PHONE,
            "Mobile/22H20 musical_ly_41.8.0 BytedanceWebview/d8a21c6",
            5,
            IPhone,
        ),
        (PHONE, "Mobile/15E148 LinkedInApp/9.31.2841", 5, IPhone),
        (PHONE, "Mobile/15E148", 5, IPhone),
        (
            "Mozilla/5.0 (iPod touch; CPU iPhone OS 15_8 like Mac OS X) AppleWebKit/605.1.15 (KHTML, like Gecko)",
            "Version/15.6 Mobile/15E148 Safari/604.1",
            5,
            IPhone,
        ),
        // iPads with their own user agent and with the desktop one.
        (PAD, "Version/18.6 Mobile/15E148 Safari/604.1", 5, IPad),
        (
            PAD,
            "CriOS/141.0.7390.41 Mobile/15E148 Safari/604.1",
            5,
            IPad,
        ),
        (PAD, "FxiOS/143.2 Mobile/15E148 Safari/605.1.15", 5, IPad),
        (
            PAD,
            "Version/18.0 EdgiOS/141.0.3537.57 Mobile/15E148 Safari/604.1",
            5,
            IPad,
        ),
        (
            PAD,
            "Mobile/15E148 [FBAN/FBIOS;FBAV/530.0.0.41.98]",
            5,
            IPad,
        ),
        (MAC, "Version/26.0 Safari/605.1.15", 5, IPad),
        // An iPhone that requests desktop pages sends the same user agent.
        (MAC, "CriOS/141 Version/11.1.1 Safari/605.1.15", 5, IPad),
        (MAC, "FxiOS/143.2 Version/18.6 Safari/605.1.15", 5, IPad),
        (
            MAC,
            "Version/18.0 EdgiOS/141.0.3537.57 Safari/605.1.15",
            5,
            IPad,
        ),
        // Chromium and Firefox on a Mac: Dawn and wgpu on the same GPUs.
        (MAC_CHROME, "Chrome/141.0.0.0 Safari/537.36", 0, Other),
        (
            MAC_CHROME,
            "Chrome/141.0.0.0 Safari/537.36 Edg/141.0.0.0",
            0,
            Other,
        ),
        (
            MAC_CHROME,
            "Chrome/140.0.0.0 Safari/537.36 OPR/124.0.0.0",
            0,
            Other,
        ),
        (
            MAC_CHROME,
            "Chrome/141.0.0.0 Safari/537.36 Vivaldi/7.6.3797.52",
            0,
            Other,
        ),
        (
            MAC_CHROME,
            "Electron/38.2.0 Chrome/140.0.7339.133 Safari/537.36",
            0,
            Other,
        ),
        (
            MAC_CHROME,
            "HeadlessChrome/141.0.0.0 Safari/537.36",
            0,
            Other,
        ),
        (
            "Mozilla/5.0 (Macintosh; Intel Mac OS X 10.15; rv:145.0)",
            "Gecko/20100101 Firefox/145.0",
            0,
            Other,
        ),
        // Windows and Linux, with and without touch.
        (WINDOWS, "Chrome/141.0.0.0 Safari/537.36", 0, Other),
        (WINDOWS, "Chrome/141.0.0.0 Safari/537.36", 10, Other),
        (
            WINDOWS,
            "Chrome/141.0.0.0 Safari/537.36 Edg/141.0.0.0",
            10,
            Other,
        ),
        (
            "Mozilla/5.0 (Windows NT 10.0; Win64; x64; rv:143.0)",
            "Gecko/20100101 Firefox/143.0",
            0,
            Other,
        ),
        (LINUX, "Chrome/141.0.0.0 Safari/537.36", 0, Other),
        (
            LINUX,
            "Ubuntu Chromium/80.0.3987.149 Chrome/80.0.3987.149 Safari/537.36",
            0,
            Other,
        ),
        (
            "Mozilla/5.0 (X11; CrOS x86_64 14541.0.0) AppleWebKit/537.36 (KHTML, like Gecko)",
            "Chrome/141.0.0.0 Safari/537.36",
            10,
            Other,
        ),
        (
            "Mozilla/5.0 (X11; Linux x86_64; rv:143.0)",
            "Gecko/20100101 Firefox/143.0",
            0,
            Other,
        ),
        // Android: Chrome, Samsung Internet, Edge, Firefox, apps, the old browser.
        (ANDROID, "Chrome/141.0.0.0 Mobile Safari/537.36", 5, Other),
        (
            ANDROID,
            "SamsungBrowser/28.0 Chrome/130.0.0.0 Mobile Safari/537.36",
            5,
            Other,
        ),
        (
            ANDROID,
            "Chrome/141.0.0.0 Mobile Safari/537.36 EdgA/141.0.0.0",
            5,
            Other,
        ),
        (
            "Mozilla/5.0 (Android 15; Mobile; rv:143.0)",
            "Gecko/143.0 Firefox/143.0",
            5,
            Other,
        ),
        (
            "Mozilla/5.0 (Linux; Android 14; SM-S918B Build/UP1A.231005.007; wv) AppleWebKit/537.36 (KHTML, like Gecko)",
            "Version/4.0 Chrome/140.0.7339.207 Mobile Safari/537.36 [FB_IAB/FB4A;FBAV/530.0.0.51.73;]",
            5,
            Other,
        ),
        (
            "Mozilla/5.0 (Linux; U; Android 4.4.2; en-us) AppleWebKit/534.30 (KHTML, like Gecko)",
            "Version/4.0 Mobile Safari/534.30",
            5,
            Other,
        ),
        // User agents that contain iPhone without being one, and environments without a browser.
        (
            "Mozilla/5.0 (Mobile; Windows Phone 8.1; Android 4.0; ARM; Trident/7.0; Touch; rv:11.0; IEMobile/11.0; NOKIA; Lumia 520) like iPhone OS 7_0_3 Mac OS X AppleWebKit/537",
            "(KHTML, like Gecko) Mobile Safari/537",
            5,
            Other,
        ),
        (
            "Mozilla/5.0 (linux) AppleWebKit/537.36 (KHTML, like Gecko)",
            "jsdom/26.1.0",
            0,
            Other,
        ),
        ("Node.js/22", "", 0, Other),
        ("", "", 0, Other),
    ];

    #[test]
    fn user_agents_map_to_implementations() {
        for (begin, end, touch_points, expected) in AGENTS {
            let agent = format!("{begin} {end}");
            assert_eq!(
                WebGpuImplementation::from_user_agent(&agent, *touch_points),
                *expected,
                "{agent}, {touch_points} touch points"
            );
        }
    }

    #[test]
    fn pages_on_phones_and_tablets_have_a_memory_limit() {
        let limits = [IPhone, IPad, WebKit, Other].map(WebGpuImplementation::memory_limit);
        assert_eq!(limits, [Some(640 << 20), Some(1400 << 20), None, None]);
    }

    #[test]
    fn webkit_and_android_end_pages() {
        for (begin, end, touch_points, _) in AGENTS {
            let agent = format!("{begin} {end}");
            let implementation = WebGpuImplementation::from_user_agent(&agent, *touch_points);
            let expected = implementation != Other || agent.contains("Android");
            assert_eq!(implementation.ends_pages(&agent), expected, "{agent}");
        }
        assert!(!Other.ends_pages(&format!("{LINUX} Chrome/141.0.0.0 Safari/537.36")));
        assert!(!Other.ends_pages(&format!("{MAC_CHROME} Chrome/141.0.0.0 Safari/537.36")));
        assert!(WebKit.ends_pages(&format!("{MAC} Version/26.0 Safari/605.1.15")));
    }

    #[test]
    fn webkit_is_detected_without_touch_points() {
        for (begin, end, _, expected) in AGENTS {
            let found = WebGpuImplementation::from_user_agent(&format!("{begin} {end}"), 0);
            assert_eq!(found.is_webkit(), expected.is_webkit(), "{begin} {end}");
        }
    }
}
