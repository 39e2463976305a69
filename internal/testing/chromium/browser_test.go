package chromium

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

// patience limits every wait of the tests. Only a fault takes that long.
const patience = time.Minute

// browser is one process for all tests. Each tab has its own cookies.
var browser struct {
	sync.Mutex
	ctx    context.Context
	stop   func()
	folder string
	axe    string // the script of axe
	err    error
}

// theBrowser starts the browser on its first call.
func theBrowser(t *testing.T) context.Context {
	t.Helper()
	b := &browser
	b.Lock()
	defer b.Unlock()
	if b.ctx == nil && b.err == nil {
		b.err = startBrowser()
	}
	var missing missingError
	switch {
	case errors.As(b.err, &missing) && os.Getenv("GEM_TEST_REQUIRE") == "":
		t.Skip(b.err)
	case b.err != nil:
		t.Fatal(b.err)
	}
	return b.ctx
}

// missingError reports that something is not installed, and how to install it.
type missingError string

func (e missingError) Error() string { return string(e) }

func startBrowser() error {
	b := &browser
	program, err := findBrowser()
	if err != nil {
		return err
	}
	axe, err := os.ReadFile(filepath.Join("node_modules", "axe-core", "axe.min.js"))
	if err != nil {
		return missingError("axe is missing. Run at the top of the repository: npm ci --prefix internal/testing/chromium")
	}
	b.axe = string(axe)
	if b.folder, err = os.MkdirTemp("", "gem-chromium-"); err != nil {
		return err
	}
	options := []chromedp.ExecAllocatorOption{chromedp.ExecPath(program), chromedp.Headless, chromedp.DisableGPU,
		chromedp.NoFirstRun, chromedp.NoDefaultBrowserCheck,
		chromedp.UserDataDir(b.folder), chromedp.WindowSize(wide, 900)}
	for _, flag := range []string{"disable-quic", "disable-background-networking", "disable-component-update",
		"disable-sync", "disable-default-apps", "disable-extensions",
		"disable-dev-shm-usage", "disable-background-timer-throttling", "disable-backgrounding-occluded-windows",
		"disable-renderer-backgrounding", "hide-scrollbars", "mute-audio"} {
		options = append(options, chromedp.Flag(flag, true))
	}
	options = append(options, chromedp.Flag("host-resolver-rules", "MAP *.example 127.0.0.1"))
	if os.Geteuid() == 0 {
		options = append(options, chromedp.NoSandbox) // the sandbox does not work for root
	}
	allocated, end := chromedp.NewExecAllocator(context.Background(), options...)
	ctx, leave := chromedp.NewContext(allocated)
	b.stop = func() {
		leave()
		end()
		_ = os.RemoveAll(b.folder)
	}
	if err := chromedp.Do(ctx); err != nil {
		b.stop()
		return fmt.Errorf("start %s: %w", program, err)
	}
	b.ctx = ctx
	return nil
}

func findBrowser() (string, error) {
	if named := os.Getenv("GEM_TEST_CHROMIUM"); named != "" {
		return named, nil
	}
	for _, name := range []string{"chromium-headless-shell", "chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", missingError("Chromium is missing: apt-get install chromium, or name one in GEM_TEST_CHROMIUM")
}

func stopBrowser() {
	if browser.ctx != nil {
		browser.stop()
	}
}

// The widths of the window in CSS pixels: of a desktop and of a phone.
const (
	wide   = 1280
	narrow = 375
)

// tab is a window with its own cookies and one origin. The test fails at its end if a page wrote an error to the
// console, violated its own policy, or sent a request to another origin. See expects.
type tab struct {
	t      *testing.T
	ctx    context.Context
	leave  func() // closes the tab, as the end of the test does
	origin string

	mu       sync.Mutex
	faults   []string
	expected []string
	requests []string // the URLs, in order
	bytes    float64  // received bytes of the requests that have ended, with headers
}

// scriptless disables JavaScript in a tab.
func scriptless(b *tab) {
	call(b, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: true})
}

// openTab opens a window for an origin, such as http://127.0.0.1:8470.
func openTab(t *testing.T, origin string, set ...func(*tab)) *tab {
	t.Helper()
	b := &tab{t: t, origin: strings.TrimRight(origin, "/")}
	b.ctx, b.leave = chromedp.NewContext(theBrowser(t), chromedp.WithNewBrowserContext(), chromedp.WithListener(b.listen))
	if err := chromedp.Do(b.ctx); err != nil {
		t.Fatal("open a tab:", err)
	}
	t.Cleanup(func() {
		b.leave()
		for _, fault := range b.unexpected() {
			t.Error(fault)
		}
	})
	// Other windows of the browser must not take the focus.
	call(b, emulation.SetFocusEmulationEnabled, emulation.SetFocusEmulationEnabledParams{Enabled: true})
	b.look("light", wide)
	for _, s := range set {
		s(b)
	}
	return b
}

// listen records everything that a page must not do. Chromium logs violations of a policy.
func (b *tab) listen(event any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch e := event.(type) {
	case *runtime.EventExceptionThrown:
		text := e.ExceptionDetails.Text
		if e.ExceptionDetails.Exception != nil {
			text += " " + e.ExceptionDetails.Exception.Description
		}
		b.faults = append(b.faults, "a script failed: "+text)
	case *runtime.EventConsoleAPICalled:
		if e.Type == "error" || e.Type == "warning" || e.Type == "assert" {
			var words []string
			for _, a := range e.Args {
				words = append(words, string(a.Value)+a.Description)
			}
			b.faults = append(b.faults, "the console has "+string(e.Type)+": "+strings.Join(words, " "))
		}
	case *log.EventEntryAdded:
		if e.Entry.Level == log.EntryLevelError || e.Entry.Level == log.EntryLevelWarning {
			b.faults = append(b.faults, fmt.Sprintf("the browser's log has: %s (%s)", e.Entry.Text, e.Entry.URL))
		}
	case *network.EventRequestWillBeSent:
		b.requests = append(b.requests, e.Request.URL)
		u, err := url.Parse(e.Request.URL)
		own := err == nil && u.Scheme+"://"+u.Host == b.origin
		if !own && (err != nil || u.Scheme != "data" && u.Scheme != "about") {
			b.faults = append(b.faults, "a request left the origin: "+e.Request.URL)
		}
	case *network.EventLoadingFinished:
		b.bytes += e.EncodedDataLength
	case *page.EventJavascriptDialogOpening:
		b.faults = append(b.faults, "a dialog opened: "+e.Message)
		go func() { // in a goroutine, because the page waits while the dialog is open
			_, _ = chromedp.Call(b.ctx, page.HandleJavaScriptDialog, page.HandleJavaScriptDialogParams{})
		}()
	}
}

// expects states that faults with these words are part of the test, such as "404".
func (b *tab) expects(words ...string) { b.expected = append(b.expected, words...) }

// faulty returns the faults so far, expected or not.
func (b *tab) faulty() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.faults)
}

// requested returns the URLs of the requests so far.
func (b *tab) requested() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.requests)
}

// unexpected returns the unexpected faults so far.
func (b *tab) unexpected() (all []string) {
next:
	for _, fault := range b.faulty() {
		for _, e := range b.expected {
			if strings.Contains(fault, e) {
				continue next
			}
		}
		all = append(all, fault)
	}
	return all
}

// call sends a command of the DevTools protocol.
func call[P, R any](b *tab, command cdp.Command[P, R], params P) R {
	b.t.Helper()
	r, err := chromedp.Call(b.ctx, command, params)
	if err != nil {
		b.t.Fatal(err)
	}
	return r
}

// do runs actions with a common time limit.
func (b *tab) do(what string, actions ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	if err := chromedp.Do(ctx, actions...); err != nil {
		b.t.Fatalf("%s, on %s: %v", what, b.where(), err)
	}
}

// look sets the color scheme of the system and the width of the window.
func (b *tab) look(scheme string, width int64) {
	b.t.Helper()
	call(b, emulation.SetEmulatedMedia,
		emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme},
			{Name: "prefers-reduced-motion", Value: "reduce"}}})
	call(b, emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{Width: width, Height: 900,
		DeviceScaleFactor: 1, Mobile: width == narrow})
}

// visit opens a page by its URL, with or without the origin, and returns the status of the answer.
func (b *tab) visit(path string) int64 {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	answer, err := chromedp.Run(ctx, chromedp.NavigateResponse(b.origin+strings.TrimPrefix(path, b.origin)))
	if err != nil {
		b.t.Fatalf("visit %s: %v", path, err)
	}
	return answer.Status
}

// where returns the path and the query of the page.
func (b *tab) where() string {
	at, err := chromedp.Run(b.ctx, chromedp.Location())
	if err != nil {
		return err.Error()
	}
	return strings.TrimPrefix(at, b.origin)
}

// click clicks on the first element that matches a CSS selector, as soon as it is visible.
func (b *tab) click(selector string) {
	b.t.Helper()
	b.do("click "+selector, chromedp.Click(chromedp.CSS(selector), chromedp.NodeVisible))
}

// follow clicks on a link or a button that leads to another page, and waits until that page has loaded.
func (b *tab) follow(selector string) {
	b.t.Helper()
	b.leads("follow "+selector, chromedp.Click(chromedp.CSS(selector), chromedp.NodeVisible))
}

// leads runs an action that leads to another page, and waits until that page has loaded.
func (b *tab) leads(what string, action chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	if _, err := chromedp.Run(ctx, chromedp.WaitEvent(page.LoadEventFired, nil, action)); err != nil {
		b.t.Fatalf("%s, on %s: %v", what, b.where(), err)
	}
}

// fill replaces the text of a field.
func (b *tab) fill(selector, text string) {
	b.t.Helper()
	eval[any](b, fmt.Sprintf("(f => { f.focus(); f.select(); return null })(document.querySelector(%q))", selector))
	b.types(text)
}

// press presses a key as a person does. The page may prevent the default action.
func (b *tab) press(key string) {
	b.t.Helper()
	b.do("press "+key, pressing(key))
}

// pressing returns the action of pressing a key: a letter, or one of package kb.
func pressing(key string) chromedp.Action[chromedp.Void] {
	if len(key) > 1 || key[0] < ' ' {
		return chromedp.KeyEvent(key)
	}
	return chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
		down := input.DispatchKeyEventParams{Type: input.DispatchKeyEventTypeKeyDown, Key: key, Text: key}
		up := input.DispatchKeyEventParams{Type: input.DispatchKeyEventTypeKeyUp, Key: key}
		_, err := cdp.Call(ctx, t, input.DispatchKeyEvent, down)
		if err == nil {
			_, err = cdp.Call(ctx, t, input.DispatchKeyEvent, up)
		}
		return err
	})
}

// types inserts text at the focus.
func (b *tab) types(text string) {
	b.t.Helper()
	call(b, input.InsertText, input.InsertTextParams{Text: text})
}

// evaluate returns an action that runs a script on the page.
func evaluate(script string) chromedp.Action[chromedp.Void] {
	return chromedp.Evaluate[chromedp.Void](script)
}

// eval runs a script on the page and returns its result.
func eval[T any](b *tab, script string) T {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	v, err := chromedp.Run(ctx, chromedp.Evaluate[T](script, chromedp.EvalAwaitPromise))
	if err != nil {
		b.t.Fatalf("on %s: %v: %.300s", b.where(), err, script)
	}
	return v
}

// text returns the visible text of the first element that matches a selector, or "".
func (b *tab) text(selector string) string {
	b.t.Helper()
	return eval[string](b, fmt.Sprintf("document.querySelector(%q)?.innerText ?? ''", selector))
}

// count returns the number of elements that match a selector.
func (b *tab) count(selector string) int {
	b.t.Helper()
	return eval[int](b, fmt.Sprintf("document.querySelectorAll(%q).length", selector))
}

// has fails the test unless the page contains all of these texts.
func (b *tab) has(parts ...string) {
	b.t.Helper()
	text := b.text("body")
	for _, part := range parts {
		if !strings.Contains(text, part) {
			b.t.Errorf("%s lacks %q:\n%.3000s", b.where(), part, text)
		}
	}
}

// until waits until a script is true on the page, even if another page has loaded by then.
func (b *tab) until(what, script string) {
	b.t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		holds, err := chromedp.Run(b.ctx, chromedp.Evaluate[bool]("!!("+script+")"))
		if err == nil && holds {
			return
		}
		if time.Now().After(deadline) {
			b.t.Fatalf("after %s, %s still waits for %s (%v):\n%.2000s", patience, b.where(), what, err, b.text("body"))
		}
	}
}

// says waits until the page contains a text, which may span lines.
func (b *tab) says(text string) {
	b.t.Helper()
	b.until(fmt.Sprintf("%q", text),
		fmt.Sprintf(`document.body && document.body.innerText.replace(/\s+/g, " ").includes(%q)`, text))
}

// picture returns a PNG of the whole page.
func (b *tab) picture() []byte {
	b.t.Helper()
	png, err := chromedp.Run(b.ctx, chromedp.FullScreenshot(100))
	if err != nil {
		b.t.Fatal(err)
	}
	return png
}

// view returns a PNG of the visible part of the page.
func (b *tab) view() []byte {
	b.t.Helper()
	png, err := chromedp.Run(b.ctx, chromedp.CaptureScreenshot())
	if err != nil {
		b.t.Fatal(err)
	}
	return png
}
