package cronoracle

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/gemworker/gem/internal/testing/npmrig"
	"github.com/gemworker/gem/internal/testing/testdb"
	gocmp "github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgxpool"
)

func TestMain(m *testing.M) { testdb.Main(m) }

// span asks for the instants of an expression after From and up to To.
type span struct {
	Cron string    `json:"cron"`
	Zone string    `json:"zone,omitempty"`
	From time.Time `json:"from"`
	To   time.Time `json:"to"`
}

// ours returns the instants that gem.cron_next finds, in the form of the other programs.
func (s span) ours(t *testing.T, db *pgxpool.Pool) []string {
	t.Helper()
	return testdb.Value[[]string](t, db, `with recursive found (at) as (
			select gem.cron_next($1, $2, $3::timestamptz)
			union all
			select gem.cron_next($1, $2, at) from found where at <= $4::timestamptz)
		select coalesce(array_agg(to_char(at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"') order by at), '{}')
		from found where at <= $4::timestamptz`, s.Cron, cmp.Or(s.Zone, "UTC"), s.From.Format(time.RFC3339), s.To.Format(time.RFC3339))
}

// agree compares our instants of all spans with those of a program, and returns their number.
func agree(t *testing.T, spans []span, program *exec.Cmd) (instants int) {
	t.Helper()
	var asked, errs bytes.Buffer
	for _, s := range spans {
		line, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		asked.Write(append(line, '\n'))
	}
	program.Stdin, program.Stderr = &asked, &errs
	out, err := program.Output()
	if err != nil {
		t.Fatalf("%v: %v\n%s", program.Args, err, errs.String())
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	if len(lines) != len(spans) {
		t.Fatalf("%d answers to %d questions", len(lines), len(spans))
	}
	db := testdb.Pool(t, testdb.New(t))
	for i, s := range spans {
		var theirs []string
		if err := json.Unmarshal([]byte(lines[i]), &theirs); err != nil {
			t.Fatal(err)
		}
		instants += len(theirs)
		if diff := gocmp.Diff(theirs, s.ours(t, db)); diff != "" {
			t.Errorf("%s in %s after %s (-theirs +ours):\n%s", s.Cron, s.Zone, s.From, diff)
		}
	}
	return instants
}

// croner skips times of a list that fall into a gap, where Vixie cron runs them at its end, so the expressions have no
// lists.
func TestCronerFindsTheSameInstantsAroundClockChanges(t *testing.T) {
	t.Parallel()
	node, folder := npmrig.Node(t, "internal/testing/cronoracle", "croner", "npm ci --prefix internal/testing/cronoracle")
	zones := []string{"Europe/Berlin", "Australia/Lord_Howe"}
	first, years := 2025, 1
	if os.Getenv("GEM_TEST_LONG") != "" {
		zones = append(zones, "America/New_York", "America/Havana", "America/Sao_Paulo", "America/St_Johns", "Asia/Tehran",
			"Asia/Gaza", "Africa/Casablanca", "Europe/Dublin", "Pacific/Auckland", "Pacific/Chatham", "America/Santiago")
		first, years = 2017, 10
	}
	var spans []span
	for _, zone := range zones {
		place, err := time.LoadLocation(zone)
		if err != nil {
			t.Fatal(err)
		}
		for day := time.Date(first, 1, 1, 0, 0, 0, 0, time.UTC); day.Year() < first+years; day = day.AddDate(0, 0, 1) {
			_, before := day.In(place).Zone()
			if _, after := day.AddDate(0, 0, 1).In(place).Zone(); before == after {
				continue
			}
			for _, cron := range []string{"30 2 * * *", "15 1 * * *", "0 0 * * *", "45 3 * * 0", "*/15 * * * *", "30 * * * *",
				"0 */3 * * *", "* 2 * * *"} {
				spans = append(spans, span{cron, zone, day.AddDate(0, 0, -1), day.AddDate(0, 0, 2)})
			}
		}
	}
	program := exec.CommandContext(t.Context(), node, "croner.mjs")
	program.Dir = folder
	t.Logf("%d instants of %d spans", agree(t, spans, program), len(spans))
}

func TestCroniterFindsTheSameInstantsOfAnyExpression(t *testing.T) {
	t.Parallel()
	testdb.Long(t, "TestCronerFindsTheSameInstantsAroundClockChanges")
	const python = "/usr/bin/python3" // Debian's, which has the modules of its packages
	if err := exec.CommandContext(t.Context(), python, "-c", "import croniter").Run(); err != nil {
		npmrig.Missing(t, "croniter is missing: apt-get install python3-croniter")
	}
	random := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // the same expressions in each run
	values := func(first, last int) string {
		var items []string
		for range 1 + random.IntN(3) {
			low := first + random.IntN(last-first+1)
			high := low + random.IntN(last-low+1)
			items = append(items, []string{fmt.Sprint(low), fmt.Sprintf("%d-%d", low, high),
				fmt.Sprintf("%d-%d/%d", low, high, 1+random.IntN(5))}[random.IntN(3)])
		}
		return strings.Join(items, ",")
	}
	field := func(first, last int) string {
		all := []string{"*", fmt.Sprintf("*/%d", 1+random.IntN(last/2)), values(first, last), values(first, last)}
		return all[random.IntN(len(all))]
	}
	var spans []span
	for range 400 {
		// croniter takes */2 for a restricted day and a list of all days for *, and cron does neither
		days := [][2]string{{"*", "*"}, {"*", values(0, 5)}, {values(1, 30), "*"}, {values(1, 30), values(0, 5)}}
		minute, hour, month := values(0, 59), field(0, 23), field(1, 12)
		day := days[random.IntN(len(days))]
		cron := strings.Join([]string{minute, hour, day[0], month, day[1]}, " ")
		from := time.Date(2020+random.IntN(10), time.Month(1+random.IntN(12)), 1+random.IntN(28), 0, 0, 0, 0, time.UTC)
		spans = append(spans, span{Cron: cron, From: from, To: from.AddDate(0, 0, 12)})
	}
	program := exec.CommandContext(t.Context(), python, "croniter_lines.py")
	t.Logf("%d instants of %d expressions", agree(t, spans, program), len(spans))
}
