// Package chromium tests the dashboard in a real browser: Debian's Chromium, with axe, which finds accessibility
// barriers. Like the bench it is a separate module, so that GEM's go.mod stays unchanged. It contains only tests:
//
//	npm ci --prefix internal/testing/chromium
//	cd internal/testing/chromium && go test .
//
// With -pictures FOLDER the test of all pages writes PNGs of each page: light and dark, 1280 and 375 pixels wide. `make
// pictures` does that.
//
// With -run Painted -paints NUMBER -v it measures the time until the overview is painted, and the bytes that this
// takes. It needs an idle machine.
//
// The browser is the one that GEM_TEST_CHROMIUM names, otherwise an installed one. Without it, or without axe, the
// tests are skipped, or fail if GEM_TEST_REQUIRE is set.
package chromium
