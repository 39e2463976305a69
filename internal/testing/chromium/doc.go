// Package chromium holds the dashboard against a real browser: Debian's Chromium, with axe, which finds what keeps
// people from using a page. It is a module of its own, as the bench is, so that GEM's go.mod stays as it is, and it has
// tests alone:
//
//	npm ci --prefix internal/testing/chromium
//	cd internal/testing/chromium && go test .
//
// With -pictures FOLDER the test of all pages leaves a PNG of each: light and dark, 1280 and 375 pixels wide. `make
// pictures` does that.
//
// With -run Painted -paints NUMBER -v it measures how soon the overview is painted, and how many bytes that takes. It
// needs a machine that does nothing else.
//
// The browser is the one that GEM_TEST_CHROMIUM names, else one that is installed. Without it, or without axe, the
// tests are skipped, or fail where GEM_TEST_REQUIRE is set.
package chromium
