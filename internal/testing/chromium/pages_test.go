package chromium

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

var pictures = flag.String("pictures", "", "leave a PNG of each page in this `folder`")

// pageOf is a page that the tests open, with its path and the name of its picture.
type pageOf struct{ name, path string }

// pages returns the pages of a day.
func (d *day) pages() []pageOf {
	return []pageOf{
		{"overview", "/"},
		{"calls", "/calls"},
		{"calls-failed", "/calls?state=failed&tool=shop.charge"},
		{"calls-none", "/calls?state=failed&tool=no.such"},
		{"call-succeeded", "/calls/" + d.ok},
		{"call-failed", "/calls/" + d.declined},
		{"call-hit", "/calls/" + d.hit},
		{"call-unknown", "/calls/" + d.unknown},
		{"call-invalid", "/calls/" + d.invalid},
		{"call-not-configured", "/calls/" + d.missing},
		{"call-durable", "/calls/" + d.fulfil},
		{"call-asked", "/calls/" + d.refund},
		{"call-agent", "/calls/" + d.agent},
		{"call-running", "/calls/" + d.running},
		{"call-again", "/calls/" + d.unknown + "/again"},
		{"call-cancel", "/calls/" + d.running + "/cancel"},
		{"conversation", "/calls/" + d.agent + "/conversation"},
		{"extraction", "/calls/" + d.extraction + "/extraction"},
		{"failures", "/failures"},
		{"questions", "/questions"},
		{"question", "/questions/" + d.question},
		{"approval", "/questions/" + d.approval},
		{"session", "/sessions?id=s-agent"},
		{"sessions", "/sessions"},
		{"bulk", "/calls/bulk?do=again&all=yes&state=failed&tool=shop.charge"},
		{"tools", "/tools"},
		{"tool", "/tools/shop.charge"},
		{"workers", "/workers"},
		{"schedules", "/schedules"},
		{"schedule", "/schedules/report?of=ada"},
		{"nothing", "/nothing"},
	}
}

// looks are the color schemes and widths in which each page is tested. The first two are tested for each change, and
// the others with GEM_TEST_LONG.
var looks = []struct {
	scheme string
	width  int64
}{{"light", wide}, {"dark", narrow}, {"light", narrow}, {"dark", wide}}

// Scenarios 2 and 18.
func TestEveryPageIsFreeOfBarriersInEveryLook(t *testing.T) {
	t.Parallel()
	d := newDay(t)
	origin := d.serve(grace)
	if *pictures != "" {
		if err := os.MkdirAll(*pictures, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	looks := looks
	if os.Getenv("GEM_TEST_LONG") == "" && *pictures == "" {
		looks = looks[:2]
	}
	for _, p := range d.pages() {
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			b := openTab(t, origin)
			if status := b.visit(p.path); status != 200 {
				if p.name != "nothing" {
					t.Errorf("%s: %d: %.300s", p.path, status, b.text("main"))
				}
				b.expects("status of 404")
			}
			for _, l := range looks {
				b.look(l.scheme, l.width)
				look := fmt.Sprintf("%s, %d", l.scheme, l.width)
				b.barrierFree(look)
				b.showsFocus(look)
				if *pictures != "" {
					if p.name == "overview" && l == looks[0] { // the picture in the README
						d.save("dashboard.png", b.view())
					}
					d.save(fmt.Sprintf("%s-%s-%d.png", p.name, l.scheme, l.width), b.picture())
				}
			}
		})
	}
}

// save writes a picture to the folder of the flag.
func (d *day) save(name string, png []byte) {
	d.t.Helper()
	if err := os.WriteFile(filepath.Join(*pictures, name), png, 0o600); err != nil {
		d.t.Error(err)
	}
}
