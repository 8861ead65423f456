/** Starts the page. */
import { followThePage } from "./charts.mjs";
import { startCurve } from "./curve.mjs";
import { startLive } from "./live.mjs";
import { startReceipts } from "./receipt.mjs";
import { startRuns } from "./run.mjs";

document.documentElement.classList.add("scripted");
startCurve();
startLive();
startRuns();
startReceipts();
followThePage();
